-- One at a time for what concerns the store as a whole.
SELECT 1 FROM semel_meta FOR UPDATE
