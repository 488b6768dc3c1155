DELETE FROM semel_subject_key WHERE subject = ?1 RETURNING slot
