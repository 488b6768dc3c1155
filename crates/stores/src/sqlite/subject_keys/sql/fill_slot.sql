-- In place: the size is the same.
UPDATE semel_key_slot SET sealed = ?2 WHERE slot = ?1
