-- The batch; how long it took is written at its end.
INSERT INTO semel_inbox_batch (grp, began_at, took, messages) VALUES (?1, ?2, 0, ?3) RETURNING batch
