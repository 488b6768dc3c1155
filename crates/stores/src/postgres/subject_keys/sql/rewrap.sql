-- A key that is gone stays so.
UPDATE semel_subject_key SET master = $2, sealed = $3 WHERE id = $1
