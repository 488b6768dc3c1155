-- How far the store has come.
SELECT epoch, token FROM semel_meta;
