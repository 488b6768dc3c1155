-- Whether nothing waits anywhere.
SELECT NOT EXISTS (SELECT 1 FROM semel_outbox)
    AND NOT EXISTS (SELECT 1 FROM semel_outbox_aside)
    AND NOT EXISTS (SELECT 1 FROM semel_outbox_delayed);
