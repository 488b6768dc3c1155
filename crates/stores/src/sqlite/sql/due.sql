-- Records the sweeper must look at, without what it does not need: outcomes, and histories of
-- records that are not unknown.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, CASE WHEN state = 4 THEN history END, NULL
FROM semel_operation
WHERE sweep_at <= ?1
ORDER BY sweep_at
LIMIT ?2;
