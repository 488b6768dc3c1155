-- From the delayed to those that wait.
INSERT INTO semel_outbox (
    id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after,
    payload
)
SELECT
    id, lane, ?2, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
FROM semel_outbox_delayed
WHERE entry = ?1;
