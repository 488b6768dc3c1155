-- A dead letter of a lane, locked. The lane is locked before it, as by whoever saves.
SELECT sequence, lane, key FROM semel_outbox_aside
WHERE id = $1 AND state = 2 AND lane = $2
ORDER BY sequence
LIMIT 1
FOR UPDATE
