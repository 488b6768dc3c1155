-- What waits in a lane above a number.
SELECT sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
FROM semel_outbox
WHERE sequence > ?1 AND lane = ?2
ORDER BY sequence
LIMIT ?3;
