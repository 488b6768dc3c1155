-- The lane a letter is in.
SELECT lane FROM semel_outbox_aside WHERE id = ?
