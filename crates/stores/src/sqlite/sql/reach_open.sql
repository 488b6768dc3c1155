-- The same among those that have not ended.
SELECT count(*), max(token)
FROM (
    SELECT token FROM semel_operation INDEXED BY semel_operation_open
    WHERE state IN (1, 4) AND token > ?1
    ORDER BY token
    LIMIT ?2
);
