-- Ended records of a subject. Nothing is locked yet.
SELECT id
FROM semel_operation
WHERE subject = ? AND CAST(subject AS BINARY) = CAST(? AS BINARY) AND state IN (2, 3)
ORDER BY id
LIMIT ?
