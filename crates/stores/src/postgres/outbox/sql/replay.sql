-- A dead letter is due.
UPDATE semel_outbox_aside SET state = 1, again_at = coalesce($2,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
WHERE sequence = $1 AND state = 2
RETURNING sequence
