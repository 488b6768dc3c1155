UPDATE semel_inbox SET state = 2, took = ?4, handled_at = ?5
WHERE grp = ?1 AND source = ?2 AND id = ?3 AND state = 1
