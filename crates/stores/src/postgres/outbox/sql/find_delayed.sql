-- A message whose time has not come.
SELECT id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after
FROM semel_outbox_delayed
WHERE id = $1
LIMIT 1
