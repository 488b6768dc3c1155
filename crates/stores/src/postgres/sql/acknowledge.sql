-- An operator accepts this state: a new epoch, at home here, tokens above all that may have been
-- given. The sequence does not roll back, and forward is the harmless direction.
UPDATE semel_meta
SET epoch = $1, home = $2, acknowledged_by = $3,
    acknowledged_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
RETURNING setval('semel_token', $4)
