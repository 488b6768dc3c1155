-- The time once the row is locked, for a verb that takes no token.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1 AS now, NULL::bigint AS fresh
