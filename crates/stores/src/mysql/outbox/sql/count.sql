-- What may be published again: all that waits or is set aside.
SELECT (SELECT COUNT(*) FROM semel_outbox) + (SELECT COUNT(*) FROM semel_outbox_aside)
