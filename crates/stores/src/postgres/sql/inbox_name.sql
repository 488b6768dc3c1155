-- The ledger row of a letter that is given an id. No row comes back if the id is known: it waits for whoever is about to
-- apply a message under it.
INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash)
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0, octet_length(payload), 3, grp, source, $3, hash
FROM semel_inbox_letter
WHERE grp = $1 AND number = $2
ON CONFLICT DO NOTHING
RETURNING 1
