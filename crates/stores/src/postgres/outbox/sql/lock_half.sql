-- Whoever gets this knows that nobody is appending here.
LOCK TABLE semel_outbox_cursor_0 IN ACCESS EXCLUSIVE MODE
