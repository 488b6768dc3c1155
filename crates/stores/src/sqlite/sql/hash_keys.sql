-- The keys of fingerprints, newest first.
SELECT version, secret FROM semel_hash_key ORDER BY version DESC;
