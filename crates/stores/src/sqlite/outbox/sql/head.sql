-- The first of a key that is set aside.
SELECT lane, aside, again_at FROM semel_outbox_aside WHERE key = ?1 ORDER BY sequence LIMIT 1;
