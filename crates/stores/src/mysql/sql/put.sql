-- Writes decided records over those that are there and locked. The sweeper's time is set anew only for
-- a new attempt. It comes first: assignments see the ones before them.
INSERT INTO semel_operation (
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history, sweep_at
) VALUES
    /*each ,*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*each*/
ON DUPLICATE KEY UPDATE
    sweep_at = IF(semel_operation.token = VALUES(token), semel_operation.sweep_at, VALUES(sweep_at)),
    state = VALUES(state), token = VALUES(token), nonce = VALUES(nonce), fp_version = VALUES(fp_version),
    fp_digest = VALUES(fp_digest), fp_paths = VALUES(fp_paths), recovery = VALUES(recovery),
    lease_us = VALUES(lease_us), run_max_us = VALUES(run_max_us), ttl_us = VALUES(ttl_us),
    window_us = VALUES(window_us), attempts = VALUES(attempts), created_at = VALUES(created_at),
    attempt_at = VALUES(attempt_at), lease_until = VALUES(lease_until), settled_at = VALUES(settled_at),
    subject = VALUES(subject), outcome = VALUES(outcome), history = VALUES(history)
