-- The migrations that were applied, oldest first.
SELECT version, name, checksum, minimum_reader FROM semel_schema ORDER BY version;
