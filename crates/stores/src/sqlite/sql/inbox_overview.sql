SELECT
    counted.seen, counted.open,
    count(*) FILTER (WHERE l.aside = 1), count(*) FILTER (WHERE l.aside IN (2, 4)),
    count(*) FILTER (WHERE l.aside = 3), min(l.since)
FROM (
    SELECT count(*) AS seen, count(*) FILTER (WHERE state = 1) AS open
    FROM (SELECT state FROM semel_inbox WHERE grp = ?1 LIMIT ?2)
) AS counted
LEFT JOIN semel_inbox_letter AS l ON l.grp = ?1
