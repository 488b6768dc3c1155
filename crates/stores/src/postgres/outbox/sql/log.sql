-- Which half of the log is written, whether it is full, and whether the other one holds anything.
SELECT half,
    pg_relation_size(format('semel_outbox_cursor_%s', half)::regclass) > log_bytes AS is_full,
    pg_relation_size(format('semel_outbox_cursor_%s', 1 - half)::regclass) > 0 AS other_has_rows
FROM semel_outbox_setting
