-- What matches between two tokens. ?3 has a bit for each state wanted; ?5 says whether the tenant
-- counts, since ?6 may be the wish for none. Outcomes stay where they are.
SELECT
    token, id, state, attempts, recovery, lease, run_max, ttl, retry_window, created_at, attempt_at,
    lease_until, settled_at, nonce, namespace, tenant, route, key, subject, print_version,
    print_digest, print_paths, history, NULL
FROM semel_operation
WHERE token > ?1 AND token <= ?2
    AND (?3 >> state) & 1
    AND (?4 IS NULL OR namespace = ?4)
    AND (NOT ?5 OR tenant IS ?6)
    AND (?7 IS NULL OR route = ?7)
    AND (?8 IS NULL OR key = ?8)
ORDER BY token;
