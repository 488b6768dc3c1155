-- What this server is, before anything of ours is looked for.
SELECT
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only') = 'on' AS read_only,
    current_setting('server_version_num')::integer AS version,
    current_schema()::text AS schema,
    coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create,
    current_user::text AS role,
    -- Not to_regclass: it answers from a cache, and a migrator that waited for another must see its work.
    EXISTS (
        SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = 'semel_schema' AND nspname = current_schema()
    ) AS migrated
