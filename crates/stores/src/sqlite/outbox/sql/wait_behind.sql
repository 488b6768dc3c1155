-- A letter waits for one before it, as before.
UPDATE semel_outbox_aside SET aside = 3, again_at = NULL WHERE sequence = ?1 AND aside <> 2;
