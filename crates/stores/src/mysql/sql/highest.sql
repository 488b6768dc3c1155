-- The highest token that was given.
SELECT COALESCE(MAX(n), 0) FROM semel_token
