-- One page by token: what has not ended among the records looked at, and how far the look went.
-- Neither state has an outcome.
WITH looked AS MATERIALIZED (
    SELECT
        id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
        lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
        subject, NULL::bytea AS outcome, history
    FROM semel_operation
    WHERE token > $2
    ORDER BY token
    LIMIT $3
)
SELECT
    coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now,
    (SELECT count(*) FROM looked) AS seen,
    (SELECT max(token) FROM looked) AS last,
    open.*
FROM (SELECT 1) AS always LEFT JOIN looked AS open ON open.state IN (1, 4)
ORDER BY open.token
