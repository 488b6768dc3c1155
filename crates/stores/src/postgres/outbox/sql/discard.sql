-- A dead letter that nobody will publish.
DELETE FROM semel_outbox_aside WHERE sequence = $1 RETURNING sequence
