-- It waits with the others now.
DELETE FROM semel_outbox_delayed WHERE entry = ?1;
