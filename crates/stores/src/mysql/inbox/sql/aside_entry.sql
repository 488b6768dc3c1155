-- The ledger row of a message that is set aside. One of another payload stays as it is.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
VALUES (?, ?, ?, 3, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, ?)
ON DUPLICATE KEY UPDATE
    handled_at = IF(semel_inbox.hash = VALUES(hash), VALUES(handled_at), semel_inbox.handled_at),
    state = IF(semel_inbox.hash = VALUES(hash), 3, semel_inbox.state)
