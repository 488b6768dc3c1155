-- Settled. By whole primary keys: a range, or IN, would wait for rows others have not committed.
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox o ON o.lane = ? AND o.sequence = j.sequence
