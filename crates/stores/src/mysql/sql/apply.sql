-- Remembers a migration, once all of it has run.
INSERT INTO semel_schema (version, name, checksum, applied_at, minimum_reader)
VALUES (?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ?)
