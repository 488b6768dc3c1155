-- The key an outcome names.
SELECT id, master, sealed FROM semel_subject_key JOIN semel_key_slot USING (slot) WHERE id = ?1
