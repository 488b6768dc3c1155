-- A message among those whose time is to come.
SELECT
    0, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload
FROM semel_outbox_delayed o
WHERE o.id = ?
