-- The record of an operation, whole, wherever it is: every generation there is, the newest first.
WITH RECURSIVE generation (number) AS (
    SELECT max(generation) FROM semel_operation
    UNION ALL
    SELECT (SELECT max(o.generation) FROM semel_operation AS o WHERE o.generation < g.number)
    FROM generation AS g
    WHERE g.number IS NOT NULL
)
SELECT
    o.token, o.id, o.state, o.attempts, o.recovery, o.lease, o.run_max, o.ttl, o.retry_window, o.created_at,
    o.attempt_at, o.lease_until, o.settled_at, o.nonce, o.namespace, o.tenant, o.route, o.key, o.subject,
    o.print_version, o.print_digest, o.print_paths, o.history, o.outcome
FROM generation AS g CROSS JOIN semel_operation AS o
WHERE o.generation = g.number AND o.id = ?1
LIMIT 1;
