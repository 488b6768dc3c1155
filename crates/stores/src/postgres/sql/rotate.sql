-- Adds a key of fingerprints above the newest. The caller holds the row of semel_meta, so that two
-- rotations do not choose the same version.
INSERT INTO semel_hash_key (version, secret, created_at)
SELECT coalesce(max(version), 0) + 1, $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM semel_hash_key
RETURNING version
