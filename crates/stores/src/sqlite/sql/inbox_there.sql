SELECT EXISTS (SELECT 1 FROM semel_inbox_letter WHERE grp = ?1 AND number = ?2)
