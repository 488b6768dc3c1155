-- They wait with the others now.
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (entry bigint PATH '$')) AS j
STRAIGHT_JOIN semel_outbox_delayed o ON o.entry = j.entry
