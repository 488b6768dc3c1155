-- The store's mark and the record of an operation, both of one moment: a store that went back
-- must not answer from what it lost.
SELECT
    o.token, o.id, o.state, o.attempts, o.recovery, o.lease, o.run_max, o.ttl, o.retry_window, o.created_at, o.attempt_at,
    o.lease_until, o.settled_at, o.nonce, o.namespace, o.tenant, o.route, o.key, o.subject, o.print_version,
    o.print_digest, o.print_paths, o.history, o.outcome,
    m.epoch, m.token
FROM semel_meta AS m
LEFT JOIN semel_operation AS o ON o.id = ?1;
