-- Whether a key has something set aside.
SELECT EXISTS (SELECT 1 FROM semel_outbox_parked WHERE key = ?1);
