-- The outcome of the attempt that began here. The number it leaves behind as the last one made tells the
-- connection that this was the last statement on it.
UPDATE semel_operation
SET settled_at = IF(? = 1, NULL, GREATEST(attempt_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))),
    outcome = ?, history = ?, state = ? + 0 * LAST_INSERT_ID(?)
WHERE id = ? AND token = ? AND nonce = ? AND state = 1
