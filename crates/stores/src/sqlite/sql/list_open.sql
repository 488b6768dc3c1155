-- The same where only what has not ended is wanted: through the index of those.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, history, NULL
FROM semel_operation INDEXED BY semel_operation_open
WHERE state IN (1, 4) AND token > ?1 AND token <= ?2
    AND (?3 >> state) & 1
    AND (?4 IS NULL OR namespace = ?4)
    AND (NOT ?5 OR tenant IS ?6)
    AND (?7 IS NULL OR route = ?7)
    AND (?8 IS NULL OR key = ?8)
ORDER BY token;
