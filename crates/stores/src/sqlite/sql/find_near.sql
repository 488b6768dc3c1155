-- The record of an operation, whole, if it is in one of the two newest generations or among what is left of old ones.
SELECT
    o.token, o.id, o.state, o.attempts, o.recovery, o.lease, o.run_max, o.ttl, o.retry_window, o.created_at,
    o.attempt_at, o.lease_until, o.settled_at, o.nonce, o.namespace, o.tenant, o.route, o.key, o.subject,
    o.print_version, o.print_digest, o.print_paths, o.history, o.outcome
FROM (VALUES (?2), (?3), (?4)) AS near CROSS JOIN semel_operation AS o
WHERE o.generation = near.column1 AND o.id = ?1
LIMIT 1;
