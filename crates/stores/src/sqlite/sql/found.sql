-- The store begins: its identity, at the first epoch.
INSERT INTO semel_meta (one, store_id, epoch, token) VALUES (1, ?1, 1, 0);
