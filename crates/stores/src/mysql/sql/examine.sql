-- Which store this is, how far it has come, and in which database.
SELECT
    store_id, epoch, home,
    (SELECT COALESCE(MAX(n), 0) FROM semel_token) AS token,
    DATABASE() AS here
FROM semel_meta
