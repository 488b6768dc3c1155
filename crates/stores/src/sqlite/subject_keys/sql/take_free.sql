-- A slot that is free, taken.
DELETE FROM semel_key_free WHERE slot = (SELECT min(slot) FROM semel_key_free) RETURNING slot
