SELECT EXISTS (
    SELECT 1 FROM semel_inbox_fence
    WHERE grp = ?1 AND source = ?2 AND lane = ?3 AND key = ?4 AND ?5 < epoch AND ?6 <= sequence
)
