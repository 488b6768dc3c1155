-- The letters of some keys, each key's in order: number, size, and whether it may go by itself now.
SELECT
    `key`, sequence, LENGTH(payload), aside,
    COALESCE(again_at <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), 1)
FROM semel_outbox_aside
WHERE lane = ? AND `key` IN (/*each ,*/?/*each*/)
ORDER BY `key`, sequence
LIMIT ?
