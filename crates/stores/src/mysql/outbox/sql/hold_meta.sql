-- The outbox as a whole, held: its epoch, its home, how far it has come.
SELECT epoch, home, (SELECT COALESCE(MAX(settled), 0) FROM semel_outbox_lane) FROM semel_outbox_meta FOR UPDATE
