-- Writes first claims where nothing is. Where something is, it changes nothing but still takes the row:
-- IGNORE would pass over errors too, and would leave a lock that others share and then wait for.
INSERT INTO semel_operation (
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history, sweep_at
) VALUES
    /*each ,*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*each*/
ON DUPLICATE KEY UPDATE id = semel_operation.id
