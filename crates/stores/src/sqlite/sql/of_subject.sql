-- A subject's ended records, without the outcomes that are about to go.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, history, NULL
FROM semel_operation
WHERE subject = ?1 AND state IN (2, 3)
LIMIT ?2;
