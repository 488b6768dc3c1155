-- A message among those that wait. There is no index on ids: operators ask this, and nobody else.
SELECT sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
FROM semel_outbox
WHERE id = ?1
LIMIT 1;
