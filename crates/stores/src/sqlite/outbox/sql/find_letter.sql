-- A message among those set aside.
SELECT
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload,
    aside, tries, reason, since, again_at
FROM semel_outbox_aside
WHERE id = ?1;
