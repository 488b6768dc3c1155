-- Which of these keys wait.
SELECT DISTINCT l.`key`
FROM JSON_TABLE(/*json*/, '$[*]' COLUMNS (k varchar(1024) PATH '$')) AS a
STRAIGHT_JOIN semel_inbox_letter AS l FORCE INDEX (semel_inbox_letter_parked)
    ON l.grp = ? AND l.source = ? AND l.`key` = UNHEX(a.k)
WHERE l.aside <> 4
