UPDATE semel_subject_key SET master = ?2 WHERE id = ?1 RETURNING slot
