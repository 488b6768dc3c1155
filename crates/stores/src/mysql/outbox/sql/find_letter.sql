-- A message among those set aside.
SELECT
    o.sequence, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload,
    o.aside, o.tries, o.reason, o.since, o.again_at
FROM semel_outbox_aside o
WHERE o.id = ?
