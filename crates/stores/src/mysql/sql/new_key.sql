-- The version of the next key of fingerprints. The caller holds the row of semel_meta, so that two
-- rotations do not choose the same. Each epoch has versions of its own: one that began with a restore has forgotten how
-- far the lost one had come, and processes may still use its keys.
SELECT GREATEST(COALESCE(MAX(version), 0), (SELECT (LEAST(epoch, 32767) - 1) * 65536 FROM semel_meta)) + 1
FROM semel_hash_key
