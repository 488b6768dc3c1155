-- One claim. Terms as the store's defaults: 30 s lease, 5 min run, a day kept, 8 h of retries.
INSERT INTO bench_operation (
    id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, sweep_at
)
SELECT
    $1, $2, $3, $4, $5, 1, nextval('semel_token'), $6, 1, $7, $8, 2,
    30000000, 300000000, 86400000000, 28800000000, 1, now, now, now + 30000000, now + 86400000000
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock
ON CONFLICT (id) DO NOTHING
RETURNING token
