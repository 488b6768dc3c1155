-- How many lanes there are.
SELECT lanes FROM semel_outbox_meta;
