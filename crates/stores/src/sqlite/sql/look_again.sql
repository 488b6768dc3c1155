-- The sweeper keeps a record and will look again.
UPDATE semel_operation SET sweep_at = ?2 WHERE token = ?1;
