-- What the outbox is.
SELECT lanes FROM semel_outbox_meta
