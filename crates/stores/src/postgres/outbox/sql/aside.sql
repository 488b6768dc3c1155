-- Letters, of one state or of all, by number above $2.
SELECT lane, state, reason, since, again_at, tries, sequence,
    id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after
FROM semel_outbox_aside
WHERE sequence > $2 AND ($1::smallint IS NULL OR state = $1)
ORDER BY sequence
LIMIT $3
