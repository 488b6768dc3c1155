-- What there is to do in a lane: 0, messages above a number and their sizes; 1, letters that may go.
(SELECT 0 AS what, sequence AS number, LENGTH(payload) AS bytes
    FROM semel_outbox WHERE lane = ? AND sequence > ? ORDER BY sequence LIMIT ?)
UNION ALL
(SELECT 1, ready_at, 0 FROM semel_outbox_parked
    WHERE lane = ? AND ready_at <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) LIMIT 1)
UNION ALL
(SELECT 1, alone_at, 0 FROM semel_outbox_aside
    WHERE lane = ? AND alone_at <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) LIMIT 1)
