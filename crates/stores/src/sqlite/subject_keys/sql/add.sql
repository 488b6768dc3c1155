INSERT INTO semel_subject_key (subject, id, master, slot) VALUES (?1, ?2, ?3, ?4)
