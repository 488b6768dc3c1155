SELECT hash, state FROM semel_inbox WHERE grp = ?1 AND source = ?2 AND id = ?3
