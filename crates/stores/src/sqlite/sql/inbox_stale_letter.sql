-- The letter of a message that was kept as stale.
SELECT number FROM semel_inbox_letter WHERE grp = ?1 AND source = ?2 AND id = ?3 AND aside = 4
