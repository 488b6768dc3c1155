SELECT EXISTS (
    SELECT 1 FROM semel_inbox_letter WHERE grp = ?1 AND source = ?2 AND key = ?3 AND aside <> 4
)
