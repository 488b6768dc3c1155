-- The cluster and the database. A statement of its own: some hosts do not let everybody ask.
SELECT
    (SELECT system_identifier::text FROM pg_control_system()) || '/'
        || (SELECT oid::text FROM pg_database WHERE datname = current_database()) AS here
