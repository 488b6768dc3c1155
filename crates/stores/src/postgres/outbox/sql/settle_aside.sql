-- Letters that were sent, if the step before this statement was appended.
DELETE FROM semel_outbox_aside
WHERE sequence = ANY ($4) AND lane = $1
    AND EXISTS (SELECT FROM semel_outbox_cursor WHERE lane = $1 AND step = $2 AND epoch = $3)
RETURNING sequence
