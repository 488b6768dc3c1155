-- A page of letters.
SELECT
    l.number, l.since, l.again_at, l.tries, l.aside, l.grp, l.source, l.place, l.id, l.subject, l.own_key, l.headers,
    l.reason, l.payload
FROM semel_inbox_letter AS l
WHERE l.grp = ? AND l.number > ? AND (? IS NULL OR l.aside = ?)
ORDER BY l.number
LIMIT ?
