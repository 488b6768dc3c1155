-- Old tokens, far below the highest. Only a transaction that is open for long can still hold one.
DELETE FROM semel_token WHERE n < ? ORDER BY n LIMIT 10000
