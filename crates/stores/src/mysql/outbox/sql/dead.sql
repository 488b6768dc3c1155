-- A dead letter: its number and its key.
SELECT sequence, `key` FROM semel_outbox_aside WHERE id = ? AND aside = 2
