-- A new key under the next version.
INSERT INTO semel_hash_key (version, secret, made_at)
VALUES ((SELECT coalesce(max(version), 0) + 1 FROM semel_hash_key), ?1, ?2)
RETURNING version;
