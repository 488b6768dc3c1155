-- A letter by the id of its message.
SELECT lane, state, reason, since, again_at, tries, sequence,
    id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after
FROM semel_outbox_aside
WHERE id = $1
ORDER BY sequence
LIMIT 1
