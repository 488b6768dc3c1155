-- From the delayed to those that wait.
INSERT INTO semel_outbox (
    lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent, deliver_after,
    payload
)
SELECT
    o.lane, o.id, COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), o.topic, o.`key`, o.headers,
    o.content_type, o.correlation, o.causation, o.trace_parent, o.deliver_after, o.payload
FROM JSON_TABLE(?, '$[*]' COLUMNS (entry bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox_delayed o ON o.entry = j.entry
