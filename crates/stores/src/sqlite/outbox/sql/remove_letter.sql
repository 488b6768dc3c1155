-- A letter is settled.
DELETE FROM semel_outbox_aside WHERE sequence = ?1;
