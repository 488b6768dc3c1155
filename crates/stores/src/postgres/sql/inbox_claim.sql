-- Takes a message's ledger row before the message is set aside, and says whether somebody else has applied
-- it meanwhile. It waits for whoever is about to.
INSERT INTO semel_inbox AS i (handled_at, batch, size, state, grp, source, id, hash)
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 0, $4, 3, $1, $2, $3, $5
ON CONFLICT (grp, source, id) DO UPDATE SET state = i.state
RETURNING i.state = 2 AND i.hash = $5
