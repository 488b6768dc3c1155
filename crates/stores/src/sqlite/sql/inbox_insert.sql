-- A letter that is applied finds its row there, set aside.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (grp, source, id) DO UPDATE
SET state = excluded.state, handled_at = excluded.handled_at, batch = excluded.batch
WHERE hash = excluded.hash
