-- Keys that a master wraps, a page at a time.
SELECT id, master, sealed FROM semel_subject_key JOIN semel_key_slot USING (slot)
WHERE master = ?1 AND id > ?2 ORDER BY id LIMIT ?3
