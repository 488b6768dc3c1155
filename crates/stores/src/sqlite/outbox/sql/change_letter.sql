-- A letter was tried again in vain.
UPDATE semel_outbox_aside SET aside = ?2, tries = ?3, reason = ?4, since = ?5, again_at = ?6 WHERE sequence = ?1;
