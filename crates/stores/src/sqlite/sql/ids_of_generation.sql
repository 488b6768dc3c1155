-- Some of what is in a generation, by its index alone, in the order of ids.
SELECT id FROM semel_operation INDEXED BY semel_operation_id
WHERE generation = ?1 AND id > ?2
ORDER BY id
LIMIT ?3;
