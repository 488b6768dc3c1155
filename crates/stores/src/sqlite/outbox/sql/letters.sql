-- Letters, by number; of one kind or of all.
SELECT
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload,
    aside, tries, reason, since, again_at
FROM semel_outbox_aside
WHERE sequence > ?1 AND (?2 IS NULL OR aside = ?2)
ORDER BY sequence
LIMIT ?3;
