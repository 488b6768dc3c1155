-- The newest record that is there, and whether one that was seen is not, although nothing so new was deleted and no
-- operator gave it up.
SELECT
    newest.id,
    newest.token,
    semel_is_lost($1, $2) AS lost
FROM semel_meta AS meta
LEFT JOIN LATERAL (
    SELECT o.id, o.token
    FROM semel_operation AS o
    -- What lies below has left dead entries in the index, maybe millions.
    WHERE o.token > meta.past_token
    ORDER BY o.token DESC
    LIMIT 1
) AS newest ON true
