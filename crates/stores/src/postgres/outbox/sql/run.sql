-- Gives this run of the server a name, if it has none.
INSERT INTO semel_outbox_run DEFAULT VALUES ON CONFLICT DO NOTHING
