-- The version of the next key of fingerprints. The caller holds the row of semel_meta, so that two
-- rotations do not choose the same.
SELECT COALESCE(MAX(version), 0) + 1 FROM semel_hash_key
