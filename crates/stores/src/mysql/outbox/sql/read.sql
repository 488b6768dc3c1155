-- Messages of a lane from one number to another, and whether an earlier one of their key is set aside.
SELECT
    o.sequence, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload,
    EXISTS (SELECT 1 FROM semel_outbox_parked p WHERE p.`key` = o.`key`)
FROM semel_outbox o
WHERE o.lane = ? AND o.sequence BETWEEN ? AND ?
ORDER BY o.sequence
