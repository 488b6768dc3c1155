-- The time and a new token, and whether the newest record that was known of is lost. A statement of its own, after the one that locks the row: a token drawn
-- while waiting for the lock could be older than the one the row then has.
SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now, nextval('semel_token') AS fresh,
    $3::bigint IS NOT NULL AND semel_is_lost($2, $3) AS lost
