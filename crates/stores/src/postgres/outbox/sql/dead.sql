-- A dead letter, locked against whoever else judges it.
SELECT sequence, lane, key FROM semel_outbox_aside
WHERE id = $1 AND state = 2
ORDER BY sequence
LIMIT 1
FOR UPDATE
