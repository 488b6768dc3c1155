-- A message, in its writer's transaction.
INSERT INTO semel_outbox (
    id, lane, written_at, topic, key, headers, content_type, correlation, causation, trace_parent, deliver_after, payload
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);
