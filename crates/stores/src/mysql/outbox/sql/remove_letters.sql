-- Letters are settled.
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = j.sequence
