-- Every group that has rows.
SELECT grp FROM semel_inbox GROUP BY grp UNION SELECT grp FROM semel_inbox_letter GROUP BY grp ORDER BY grp
