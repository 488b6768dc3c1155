-- What was done to this database, in order. Made by the migrator before the first migration.
-- minimum_reader: programs that know fewer migrations than this must not use what came of it.
CREATE TABLE IF NOT EXISTS semel_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum BLOB NOT NULL,
    minimum_reader INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
