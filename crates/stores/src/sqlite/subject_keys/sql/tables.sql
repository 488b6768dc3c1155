-- Whether there are keys here, and whether there is a store of operations.
SELECT
    EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'semel_key_schema'),
    EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'semel_operation')
