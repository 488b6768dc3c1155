-- A new key under the next version. Each epoch has versions of its own: one that began with a restore has forgotten how far the
-- lost one had come, and processes may still use its keys.
INSERT INTO semel_hash_key (version, secret, made_at)
VALUES (
    (
        SELECT max(coalesce(max(version), 0), (SELECT (min(epoch, 32767) - 1) << 16 FROM semel_meta)) + 1
        FROM semel_hash_key
    ),
    ?1,
    ?2
)
RETURNING version;
