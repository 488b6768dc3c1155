-- A letter has landed, if it is still the try that did.
DELETE FROM semel_outbox_aside WHERE sequence = ?1 AND id = ?2 AND tries = ?3 RETURNING key;
