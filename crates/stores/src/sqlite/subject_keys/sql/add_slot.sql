INSERT INTO semel_key_slot (sealed) VALUES (?1) RETURNING slot
