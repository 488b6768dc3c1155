-- Expired.
DELETE FROM semel_operation WHERE token = ?1;
