-- What claims met that were not granted, and what the next token would be: above any that is there,
-- unless the counter was set back. One statement, so that all of it is of one moment.
SELECT
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now,
    (SELECT COALESCE(MAX(n), 0) + 1 FROM semel_token) AS fresh
FROM semel_operation FORCE INDEX (PRIMARY)
WHERE id IN (/*each ,*/?/*each*/)
