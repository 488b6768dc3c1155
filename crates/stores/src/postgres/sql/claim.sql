-- Insert-if-absent for many operations in one statement, and what is there for those that lost.
-- An operation in neither part was inserted by somebody else after this statement began.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
given AS MATERIALIZED (
    SELECT nextval('semel_token') AS token, wish.*
    FROM unnest(
        $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::bytea[],
        $10::bytea[], $11::smallint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[]
    ) AS wish (
        id, namespace, tenant, route, key, nonce, fp_version, fp_digest,
        fp_paths, recovery, lease_us, run_max_us, ttl_us, window_us, subject
    )
),
granted AS (
    INSERT INTO semel_operation (
        id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
        lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at,
        lease_until, sweep_at, subject
    )
    SELECT
        id, namespace, tenant, route, key, 1, token, nonce, fp_version, fp_digest, fp_paths, recovery,
        lease_us, run_max_us, ttl_us, window_us, 1, now, now,
        now + least(lease_us, 9223372036854775807 - now), now + least(ttl_us, 9223372036854775807 - now), subject
    FROM given, clock
    ON CONFLICT (id) DO NOTHING
    RETURNING id, token
)
SELECT
    now, granted.token AS fresh, true AS granted, id, NULL::smallint AS state, NULL::bigint AS token,
    NULL::bytea AS nonce, NULL::integer AS fp_version, NULL::bytea AS fp_digest, NULL::bytea AS fp_paths,
    NULL::smallint AS recovery, NULL::bigint AS lease_us, NULL::bigint AS run_max_us, NULL::bigint AS ttl_us,
    NULL::bigint AS window_us, NULL::integer AS attempts, NULL::bigint AS created_at,
    NULL::bigint AS attempt_at, NULL::bigint AS lease_until, NULL::bigint AS settled_at,
    NULL::text AS subject, NULL::bytea AS outcome, NULL::bytea AS history
FROM granted, clock
UNION ALL
SELECT
    now, given.token, false, o.id, o.state, o.token, o.nonce, o.fp_version, o.fp_digest, o.fp_paths,
    o.recovery, o.lease_us, o.run_max_us, o.ttl_us, o.window_us, o.attempts, o.created_at,
    o.attempt_at, o.lease_until, o.settled_at, o.subject, o.outcome, o.history
FROM given JOIN semel_operation AS o ON o.id = given.id, clock
