-- The lane of a dead letter, which is to be locked before the letter is.
SELECT lane FROM semel_outbox_aside
WHERE id = $1 AND state = 2
ORDER BY sequence
LIMIT 1
