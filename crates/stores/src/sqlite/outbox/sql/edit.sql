-- Another message in the place of a dead letter.
UPDATE semel_outbox_aside SET
    id = ?2, topic = ?3, headers = ?4, content_type = ?5, correlation = ?6, causation = ?7, trace_parent = ?8,
    deliver_after = ?9, payload = ?10
WHERE sequence = ?1;
