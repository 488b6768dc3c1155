-- What waits, by number; of one topic or of all.
SELECT sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
FROM semel_outbox
WHERE sequence > ?1 AND (?2 IS NULL OR topic = ?2)
ORDER BY sequence
LIMIT ?3;
