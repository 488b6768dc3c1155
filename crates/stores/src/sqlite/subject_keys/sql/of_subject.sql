-- The key of a subject.
SELECT id, master, sealed FROM semel_subject_key JOIN semel_key_slot USING (slot) WHERE subject = ?1
