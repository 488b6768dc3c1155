-- Another message in the place of a dead letter.
UPDATE semel_outbox_aside SET
    id = ?, topic = ?, headers = ?, content_type = ?, correlation = ?, causation = ?, trace_parent = ?,
    deliver_after = ?, payload = ?
WHERE sequence = ?
