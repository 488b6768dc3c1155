-- Writes decided records over those that are there and locked. The sweeper's time is set anew only
-- for a new attempt: otherwise the row could not stay on its page.
UPDATE semel_operation AS o
SET state = put.state, token = put.token, nonce = put.nonce, fp_version = put.fp_version,
    fp_digest = put.fp_digest, fp_paths = put.fp_paths, recovery = put.recovery, lease_us = put.lease_us,
    run_max_us = put.run_max_us, ttl_us = put.ttl_us, window_us = put.window_us, attempts = put.attempts,
    created_at = put.created_at, attempt_at = put.attempt_at, lease_until = put.lease_until,
    settled_at = put.settled_at, subject = put.subject, outcome = put.outcome, history = put.history,
    sweep_at = CASE WHEN o.token = put.token THEN o.sweep_at ELSE put.sweep_at END
FROM unnest(
    $1::bytea[], $2::smallint[], $3::bigint[], $4::bytea[], $5::integer[], $6::bytea[], $7::bytea[],
    $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::text[], $20::bytea[], $21::bytea[]
) AS put (
    id, state, token, nonce, fp_version, fp_digest, fp_paths,
    recovery, lease_us, run_max_us, ttl_us, window_us, attempts, created_at,
    attempt_at, lease_until, settled_at, sweep_at, subject, outcome, history
)
WHERE o.id = put.id
RETURNING 1
