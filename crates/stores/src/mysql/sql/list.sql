-- What may match among the records looked at, by token. Outcomes stay where they are; an empty one
-- stands for them. Equal here is a little more than equal (spaces at the end do not count), so
-- whoever asked compares again.
SELECT
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, IF(state = 2, '', NULL) AS outcome, history
FROM semel_operation FORCE INDEX (semel_operation_token)
WHERE token > ? AND token <= ?
    AND state IN (?, ?, ?, ?, ?)
    AND namespace = COALESCE(?, namespace)
    AND (? = 0 OR tenant <=> ?)
    AND route = COALESCE(?, route)
    AND `key` = COALESCE(?, `key`)
ORDER BY token
