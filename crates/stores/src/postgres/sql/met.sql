-- What claims met that were not granted, and what the next token would be: above any that is there,
-- unless the sequence was set back.
SELECT
    coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now,
    tokens.last_value + 1 AS fresh, o.id, o.state, o.token, o.nonce, o.fp_version, o.fp_digest, o.fp_paths,
    o.recovery, o.lease_us, o.run_max_us, o.ttl_us, o.window_us, o.attempts, o.created_at,
    o.attempt_at, o.lease_until, o.settled_at, o.subject, o.outcome, o.history
FROM semel_operation AS o, semel_token AS tokens
WHERE o.id = ANY ($2)
