-- Whether this server takes writes, which store it holds, and how far that has come.
SELECT
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only') = 'on' AS read_only,
    meta.store_id,
    meta.epoch,
    meta.home,
    CASE WHEN tokens.is_called THEN tokens.last_value ELSE 0 END AS token
FROM semel_meta AS meta, semel_token AS tokens
