-- Letters to apply now: those whose time has come and those with nobody of their key before them any more. Of each
-- key only the first.
SELECT
    l.number, l.since, l.again_at, l.tries, l.aside, l.grp, l.source, l.place, l.id, l.subject, l.own_key, l.headers,
    l.reason, l.payload
FROM semel_inbox_letter AS l
WHERE l.grp = ?
    AND (l.aside = 3 OR l.aside = 1 AND l.again_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
    AND (
        l.`key` IS NULL
        OR NOT EXISTS (
            SELECT 1 FROM semel_inbox_letter AS e
            WHERE e.grp = l.grp AND e.source = l.source AND e.`key` = l.`key` AND e.number < l.number AND e.aside <> 4
        )
    )
ORDER BY l.number
LIMIT ?
