-- How far relays had come with keys that nobody has seen for long.
SELECT source, lane, `key` FROM semel_inbox_fence FORCE INDEX (semel_inbox_fence_sweep)
WHERE grp = ? AND seen_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ?
ORDER BY seen_at
LIMIT ?
FOR UPDATE SKIP LOCKED
