-- The row about a new store.
INSERT INTO semel_meta (store_id, epoch, home)
VALUES (
    $1, 1,
    (SELECT system_identifier::text FROM pg_control_system()) || '/'
        || (SELECT oid::text FROM pg_database WHERE datname = current_database())
)
