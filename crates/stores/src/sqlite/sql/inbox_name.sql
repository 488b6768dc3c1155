-- The ledger row of a letter that is given an id. None is written if the id is known.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
SELECT grp, source, ?3, 3, length(payload), ?4, 0, hash FROM semel_inbox_letter WHERE grp = ?1 AND number = ?2
ON CONFLICT DO NOTHING
