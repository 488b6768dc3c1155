-- How far a page reaches that looks at so many records above a token.
SELECT count(*), max(token)
FROM (SELECT token FROM semel_operation WHERE token > ?1 ORDER BY token LIMIT ?2);
