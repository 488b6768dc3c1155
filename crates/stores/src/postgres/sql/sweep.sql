-- Deletes what has expired among the records due, and gives back the others for a decision.
-- Rows somebody is working on are left for the next time. Only ended records expire: at creation
-- plus TTL, but not before their end plus the retry window. One sweeper at a time: what is deleted is noted in the row of
-- semel_meta, and whoever waited for that with rows in hand would hold up claims of them.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
turn AS MATERIALIZED (
    SELECT FROM semel_meta FOR NO KEY UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT
        id, namespace, tenant, route, key, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
        lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
        subject, CASE WHEN state = 2 THEN ''::bytea END AS outcome, history, sweep_at,
        state IN (2, 3, 5) AND (SELECT now FROM clock) >= greatest(
            created_at + least(ttl_us, 9223372036854775807 - created_at),
            settled_at + least(window_us, 9223372036854775807 - settled_at)
        ) AS expired
    FROM semel_operation
    WHERE EXISTS (SELECT FROM turn) AND sweep_at >= $2 AND sweep_at <= (SELECT now FROM clock)
    ORDER BY sweep_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM semel_operation AS o
    USING due
    WHERE o.id = due.id AND due.expired
    RETURNING 1
)
SELECT
    now,
    (SELECT count(*) FROM due) AS seen,
    (SELECT count(*) FROM gone) AS deleted,
    (SELECT max(sweep_at) FROM due) AS last,
    kept.*
FROM clock LEFT JOIN due AS kept ON NOT kept.expired
