-- Whether a letter is there, and its id if it has one.
SELECT id FROM semel_inbox_letter WHERE grp = ?1 AND number = ?2
