-- The operation's lock, then its record, the time and a new token: one round trip of the caller's transaction.
SELECT * FROM semel_begin($1, $2) AS begun
