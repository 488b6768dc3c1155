-- What this server is, whether there are keys here, and whether there is a store of operations in any schema.
SELECT
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only') = 'on' AS read_only,
    EXISTS (
        SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = 'semel_subject_key' AND nspname = current_schema()
    ) AS made,
    EXISTS (SELECT FROM pg_class WHERE relname = 'semel_operation' AND relkind IN ('r', 'p')) AS is_store
