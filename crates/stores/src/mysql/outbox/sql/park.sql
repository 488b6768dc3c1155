-- Says of keys when the first of them that is set aside may go: a dead one not by itself, one behind at once,
-- because whatever it waited for is gone.
INSERT INTO semel_outbox_parked (`key`, lane, ready_at)
SELECT o.`key`, o.lane, CASE o.aside WHEN 1 THEN COALESCE(o.again_at, ?) WHEN 3 THEN ? ELSE NULL END
FROM (
    SELECT MIN(sequence) AS sequence FROM semel_outbox_aside
    WHERE lane = ? AND `key` IN (/*each ,*/?/*each*/)
    GROUP BY `key`
) AS head
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = head.sequence
