-- Batches that are old and that nobody works on.
SELECT batch FROM semel_inbox_batch FORCE INDEX (semel_inbox_batch_sweep)
WHERE grp = ? AND began_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ?
ORDER BY began_at
LIMIT ?
FOR UPDATE SKIP LOCKED
