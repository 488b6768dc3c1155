-- Whether a letter is there, and has an id.
SELECT id IS NOT NULL FROM semel_inbox_letter WHERE grp = ?1 AND number = ?2
