DELETE FROM semel_inbox_batch WHERE batch IN (
    SELECT batch FROM semel_inbox_batch WHERE grp = ?1 AND began_at < ?2 ORDER BY began_at LIMIT ?3
)
