-- Every group, found by jumping from one to the next.
WITH RECURSIVE grps (grp) AS (
    SELECT min(grp) FROM semel_inbox
    UNION ALL
    SELECT (SELECT min(i.grp) FROM semel_inbox AS i WHERE i.grp > grps.grp) FROM grps WHERE grps.grp IS NOT NULL
)
SELECT grp FROM grps WHERE grp IS NOT NULL
UNION SELECT DISTINCT grp FROM semel_inbox_letter
ORDER BY 1
