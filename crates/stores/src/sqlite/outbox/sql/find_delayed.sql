-- A message among those whose time is to come.
SELECT 0, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
FROM semel_outbox_delayed
WHERE id = ?1;
