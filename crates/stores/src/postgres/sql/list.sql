-- One page by token: what matches among the records looked at, and how far the look went. $5 to $9:
-- namespace, whether the tenant counts, the tenant or none, route, key. Outcomes stay where they are;
-- an empty one stands for them.
WITH looked AS MATERIALIZED (
    SELECT
        id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
        lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
        subject, CASE WHEN state = 2 THEN ''::bytea END AS outcome, history
    FROM semel_operation
    WHERE token > $2
    ORDER BY token
    LIMIT $3
)
SELECT
    coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now,
    (SELECT count(*) FROM looked) AS seen,
    (SELECT max(token) FROM looked) AS last,
    found.*
FROM (SELECT 1) AS always
LEFT JOIN looked AS found
    ON ($4::smallint[] IS NULL OR found.state = ANY ($4))
    AND ($5::text IS NULL OR found.namespace = $5)
    AND (NOT $6::boolean OR found.tenant IS NOT DISTINCT FROM $7)
    AND ($8::text IS NULL OR found.route = $8)
    AND ($9::text IS NULL OR found.key = $9)
ORDER BY found.token
