-- The lock of an operation, waited for and let go at once: who had it is done. Then whether an attempt's outcome is
-- there, or was and has been purged since. In transactions of their own, whatever the session's autocommit says.
START TRANSACTION;
SELECT slot FROM semel_slot WHERE slot = ? FOR UPDATE;
COMMIT;
START TRANSACTION;
SELECT state FROM semel_operation WHERE id = ? AND nonce = ? AND state <> 1 FOR UPDATE;
COMMIT
