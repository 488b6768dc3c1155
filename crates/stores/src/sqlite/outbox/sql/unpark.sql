-- A key has nothing set aside any more.
DELETE FROM semel_outbox_parked WHERE key = ?1;
