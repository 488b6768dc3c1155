-- What may be published again: all that waits or is set aside.
SELECT (SELECT count(*) FROM semel_outbox) + (SELECT count(*) FROM semel_outbox_aside);
