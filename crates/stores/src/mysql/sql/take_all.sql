-- Records by their ids, held until the transaction ends, waiting for those in use. Their outcomes are
-- not read: they are about to go.
SELECT
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, IF(state = 2, '', NULL) AS outcome, history
FROM semel_operation FORCE INDEX (PRIMARY)
WHERE id IN (/*each ,*/?/*each*/)
ORDER BY id
FOR UPDATE
