-- A dead letter is due.
UPDATE semel_outbox_aside SET state = 1, again_at = coalesce($2,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
WHERE sequence = (SELECT sequence FROM semel_outbox_aside WHERE id = $1 AND state = 2 ORDER BY sequence LIMIT 1)
    AND state = 2
RETURNING sequence
