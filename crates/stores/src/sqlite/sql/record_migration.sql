-- A migration was applied, in the same transaction.
INSERT INTO semel_schema (version, name, checksum, minimum_reader, applied_at) VALUES (?1, ?2, ?3, ?4, ?5);
