-- Nothing is said of these keys.
DELETE FROM semel_outbox_parked WHERE `key` IN (/*each ,*/?/*each*/)
