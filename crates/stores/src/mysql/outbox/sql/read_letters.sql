-- Letters by their numbers.
SELECT
    o.sequence, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload,
    o.aside, o.tries, o.reason, o.since, o.again_at
FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = j.sequence
