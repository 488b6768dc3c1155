-- A message that waits, by its id. There is no index for this: writers would pay for it, and people look
-- rarely.
SELECT o.lane, o.sequence, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.correlation,
    o.causation, o.trace_parent,
    o.deliver_after
FROM semel_outbox AS o
CROSS JOIN LATERAL (
    SELECT * FROM semel_outbox_cursor AS log WHERE log.lane = o.lane ORDER BY log.step DESC LIMIT 1
) AS saved
WHERE o.id = $1 AND NOT pg_visible_in_snapshot(o.xid, saved.snapshot)
    AND NOT (saved.batch IS NOT NULL AND o.sequence <= saved.last AND pg_visible_in_snapshot(o.xid,
        saved.batch))
LIMIT 1
