-- The ended records of a subject, held until the transaction ends. Their outcomes are not read: they
-- are about to go.
SELECT
    id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, CASE WHEN state = 2 THEN ''::bytea END AS outcome, history
FROM semel_operation
WHERE subject = $1 AND state IN (2, 3)
ORDER BY id
LIMIT $2
FOR UPDATE
