-- The time once the row is locked, for a verb that takes no token.
SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now, NULL::bigint AS fresh
