-- The record of one operation, as it is.
SELECT
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history
FROM semel_operation
WHERE id = ?
