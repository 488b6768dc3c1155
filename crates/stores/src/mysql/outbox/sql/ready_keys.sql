-- Keys whose first letter may go, the longest due first.
SELECT `key` FROM semel_outbox_parked
WHERE lane = ? AND ready_at <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY ready_at, `key`
LIMIT ?
