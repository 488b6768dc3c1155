-- The letters of a key, in order.
SELECT
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload,
    aside, tries, reason, since, again_at
FROM semel_outbox_aside
WHERE key = ?1
ORDER BY sequence
LIMIT ?2;
