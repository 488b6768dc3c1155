-- Begins an operation in the caller's transaction, in one message.
--
-- A savepoint outlives its statement in a transaction only: without one, nothing after this is run.
SAVEPOINT semel_transaction;
RELEASE SAVEPOINT semel_transaction;
-- And one that stays until the end: should a lock not be had, it tells whether the transaction is still the same.
SAVEPOINT semel_transaction;
-- The lock of the operation, or an error at once if somebody has it.
SELECT slot FROM semel_slot WHERE slot = ? FOR UPDATE NOWAIT;
-- Its token: a gap, if the transaction is rolled back.
INSERT INTO semel_token (n) VALUES (NULL);
-- Where nothing is, the claim; where something is, its row is taken. The times are counted from now, the token is
-- the one just made.
INSERT INTO semel_operation (
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history, sweep_at
) VALUES (
    ?, ?, ?, ?, ?, ?, LAST_INSERT_ID() + ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + LEAST(?, 4611686018427387904),
    ?, ?, ?, ?,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + LEAST(?, 4611686018427387904)
)
ON DUPLICATE KEY UPDATE id = semel_operation.id;
-- What is there now. The lock makes it a look at the present: a snapshot may be older than the slot's last holder.
SELECT
    id, namespace, tenant, route, `key`, state, token, nonce, fp_version, fp_digest, fp_paths, recovery,
    lease_us, run_max_us, ttl_us, window_us, attempts, created_at, attempt_at, lease_until, settled_at,
    subject, outcome, history, LAST_INSERT_ID(), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_operation
WHERE id = ?
FOR UPDATE;
RELEASE SAVEPOINT semel_transaction
