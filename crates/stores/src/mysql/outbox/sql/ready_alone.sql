-- Letters without a key that may go.
SELECT sequence, LENGTH(payload) FROM semel_outbox_aside
WHERE lane = ? AND alone_at <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY alone_at, sequence
LIMIT ?
