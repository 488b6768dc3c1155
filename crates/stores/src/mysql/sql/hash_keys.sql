-- The keys of fingerprints, newest first; no more than a process can hold.
SELECT version, secret FROM semel_hash_key ORDER BY version DESC LIMIT 8
