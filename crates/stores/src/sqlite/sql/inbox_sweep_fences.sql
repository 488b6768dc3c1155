DELETE FROM semel_inbox_fence WHERE (grp, source, lane, key) IN (
    SELECT grp, source, lane, key FROM semel_inbox_fence
    WHERE grp = ?1 AND seen_at < ?2 ORDER BY seen_at LIMIT ?3
)
