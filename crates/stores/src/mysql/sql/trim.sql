-- Old tokens, far below the highest: nobody is still writing there.
DELETE FROM semel_token WHERE n < ? ORDER BY n LIMIT 10000
