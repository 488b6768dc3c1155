-- Adds a key of fingerprints above the newest. The caller holds the row of semel_meta, so that two
-- rotations do not choose the same version. Each epoch has versions of its own: one that began with a restore has
-- forgotten how far the lost one had come, and processes may still use its keys.
INSERT INTO semel_hash_key (version, secret, created_at)
SELECT
    greatest(coalesce(max(version), 0), (SELECT (least(epoch, 32767) - 1)::integer << 16 FROM semel_meta)) + 1,
    $1,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM semel_hash_key
RETURNING version
