-- Whether Semel was here before.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'semel_schema';
