-- How many records of a subject have not ended.
SELECT count(*) FROM semel_operation WHERE subject = $1 AND state IN (1, 4)
