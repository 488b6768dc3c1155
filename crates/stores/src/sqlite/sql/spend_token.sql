-- A write that always changes a page: SQLite leaves one alone that would be the same as before.
UPDATE semel_meta SET token = token + 1;
