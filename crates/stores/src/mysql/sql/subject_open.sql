-- How many records of a subject have not ended.
SELECT COUNT(*)
FROM semel_operation
WHERE subject = ? AND CAST(subject AS BINARY) = CAST(? AS BINARY) AND state IN (1, 4)
