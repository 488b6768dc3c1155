-- The row about a new store, in one transaction with the word that its tables are there.
INSERT INTO semel_meta (one, store_id, epoch, home) VALUES (1, ?, 1, ?)
