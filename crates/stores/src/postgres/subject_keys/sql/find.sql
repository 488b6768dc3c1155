SELECT id, master, sealed FROM semel_subject_key WHERE id = $1
