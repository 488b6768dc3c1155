-- A write goes on, and none with an earlier token may from now on.
UPDATE semel_fence SET last = ?2, passed_at = ?3 WHERE resource = ?1;
