-- A dead letter is to be tried again now.
UPDATE semel_outbox_aside SET aside = 1, again_at = ?2 WHERE sequence = ?1;
