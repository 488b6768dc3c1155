-- What was settled long ago. Rows somebody works on are left for the next time, so it waits for nobody. Calls without
-- a result and messages whose letter is still there stay.
SELECT i.source, i.id
FROM semel_inbox AS i FORCE INDEX (semel_inbox_sweep)
WHERE i.grp = ? AND i.handled_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ? AND i.state <> 1
    AND NOT (
        i.state = 3 AND EXISTS (
            SELECT 1 FROM semel_inbox_letter AS l WHERE l.grp = i.grp AND l.source = i.source AND l.id = i.id
        )
    )
ORDER BY i.handled_at
LIMIT ?
FOR UPDATE SKIP LOCKED
