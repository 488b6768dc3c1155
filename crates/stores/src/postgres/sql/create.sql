-- The row about a new store.
INSERT INTO semel_meta (store_id, epoch, home) VALUES ($1, 1, $2)
