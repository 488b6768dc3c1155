-- Whether any key has.
SELECT EXISTS (SELECT 1 FROM semel_outbox_parked);
