-- A message among those that wait. There is no index on ids: operators ask this, and nobody else.
SELECT
    o.sequence, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload,
    EXISTS (SELECT 1 FROM semel_outbox_parked p WHERE p.`key` = o.`key`)
FROM semel_outbox o
WHERE o.id = ?
LIMIT 1
