SELECT id FROM semel_complete_many($1, $2, $3, $4, $5)
