-- Delayed messages whose time has come, and which nobody else is moving.
SELECT entry FROM semel_outbox_delayed
WHERE deliver_after <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY deliver_after, entry
LIMIT ?
FOR UPDATE SKIP LOCKED
