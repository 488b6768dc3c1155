SELECT count(*) FROM semel_inbox_letter WHERE grp = ?1 AND aside = 1
