INSERT INTO semel_key_free (slot) VALUES (?1)
