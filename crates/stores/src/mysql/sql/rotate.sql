-- Adds a key of fingerprints.
INSERT INTO semel_hash_key (version, secret, created_at)
VALUES (?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
