-- Insert-if-absent for many operations in one statement. Those that come back were granted; for the
-- others somebody was there before. Nothing is joined here, so nothing can be planned badly, and the
-- statement is small, because it is parsed every time.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_operation (
    token, state, attempts, created_at, attempt_at, lease_until, sweep_at,
    id, namespace, tenant, route, key, nonce, fp_version, fp_digest,
    fp_paths, recovery, lease_us, run_max_us, ttl_us, window_us, subject
)
SELECT
    nextval('semel_token'), 1, 1, now, now,
    now + least(wish.lease_us, 9223372036854775807 - now), now + least(wish.ttl_us, 9223372036854775807 - now),
    wish.*
FROM clock, unnest(
    $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::bytea[],
    $10::bytea[], $11::smallint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[]
) AS wish (
    id, namespace, tenant, route, key, nonce, fp_version, fp_digest,
    fp_paths, recovery, lease_us, run_max_us, ttl_us, window_us, subject
)
ON CONFLICT (id) DO NOTHING
RETURNING id, token, created_at
