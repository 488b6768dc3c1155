-- From the outbox to those set aside.
INSERT INTO semel_outbox_aside (
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent,
    deliver_after, aside, tries, reason, since, again_at, payload
)
SELECT
    sequence, id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent,
    deliver_after, ?2, ?3, ?4, ?5, ?6, payload
FROM semel_outbox
WHERE sequence = ?1;
