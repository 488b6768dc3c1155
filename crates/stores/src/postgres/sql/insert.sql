-- Writes decided records where there were none. Somebody may have been faster: then nothing happens,
-- and whoever asked decides again.
INSERT INTO semel_operation (
    id, state, token, nonce, fp_version, fp_digest, fp_paths,
    recovery, lease_us, run_max_us, ttl_us, window_us, attempts, created_at,
    attempt_at, lease_until, settled_at, sweep_at, subject, outcome, history,
    namespace, tenant, route, key
)
SELECT *
FROM unnest(
    $1::bytea[], $2::smallint[], $3::bigint[], $4::bytea[], $5::integer[], $6::bytea[], $7::bytea[],
    $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::text[], $20::bytea[], $21::bytea[],
    $22::text[], $23::text[], $24::text[], $25::text[]
)
ON CONFLICT (id) DO NOTHING
RETURNING 1
