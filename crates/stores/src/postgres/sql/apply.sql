-- Remembers a migration.
INSERT INTO semel_schema (version, name, checksum, applied_at, minimum_reader)
VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, $4)
