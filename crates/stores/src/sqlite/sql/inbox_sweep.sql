-- Calls without a result and messages whose letter is still there stay.
DELETE FROM semel_inbox WHERE (grp, source, id) IN (
    SELECT i.grp, i.source, i.id FROM semel_inbox AS i
    WHERE i.grp = ?1 AND i.handled_at < ?2 AND i.state <> 1
        AND NOT (
            i.state = 3 AND EXISTS (
                SELECT 1 FROM semel_inbox_letter AS l
                WHERE l.grp = i.grp AND l.source = i.source AND l.id = i.id
            )
        )
    ORDER BY i.handled_at
    LIMIT ?3
)
