-- The migrations this store has seen.
SELECT version, name, checksum, minimum_reader FROM semel_schema ORDER BY version
