-- How far the outbox has come, and its home.
SELECT epoch, home, (SELECT COALESCE(MAX(settled), 0) FROM semel_outbox_lane) FROM semel_outbox_meta
