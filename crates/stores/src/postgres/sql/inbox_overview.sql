-- Every group, with counts over no more than a bounded number of its rows.
WITH RECURSIVE grps AS (
    (SELECT grp FROM semel_inbox ORDER BY grp LIMIT 1)
    UNION ALL
    SELECT (SELECT i.grp FROM semel_inbox AS i WHERE i.grp > grps.grp ORDER BY i.grp LIMIT 1)
    FROM grps WHERE grps.grp IS NOT NULL
),
named AS (
    SELECT grp FROM grps WHERE grp IS NOT NULL
    UNION SELECT DISTINCT grp FROM semel_inbox_letter
)
SELECT
    n.grp, counted.seen, counted.open,
    count(l.number) FILTER (WHERE l.aside = 1),
    count(l.number) FILTER (WHERE l.aside IN (2, 4)),
    count(l.number) FILTER (WHERE l.aside = 3),
    min(l.since)
FROM named AS n
CROSS JOIN LATERAL (
    SELECT count(*) AS seen, count(*) FILTER (WHERE state = 1) AS open
    FROM (SELECT state FROM semel_inbox AS i WHERE i.grp = n.grp LIMIT $1) AS looked
) AS counted
LEFT JOIN semel_inbox_letter AS l ON l.grp = n.grp
GROUP BY n.grp, counted.seen, counted.open
ORDER BY n.grp
