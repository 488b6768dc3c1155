-- The record of an operation, whole, if it is in this generation.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, history, outcome
FROM semel_operation
WHERE generation = ?2 AND id = ?1;
