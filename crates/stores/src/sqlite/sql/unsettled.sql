-- Records in progress and unknown above a token. They have no outcome.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, history, NULL
FROM semel_operation INDEXED BY semel_operation_open
WHERE state IN (1, 4) AND token > ?1
ORDER BY token
LIMIT ?2;
