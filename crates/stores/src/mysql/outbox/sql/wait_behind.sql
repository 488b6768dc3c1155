-- Letters wait for one before them, as before.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = j.sequence
SET o.aside = 3, o.again_at = NULL
WHERE o.aside <> 2
