-- Letters without a key that may go.
SELECT
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload,
    aside, tries, reason, since, again_at
FROM semel_outbox_aside
WHERE lane = ?1 AND key IS NULL AND aside = 1 AND again_at <= ?2
ORDER BY again_at, sequence
LIMIT ?3;
