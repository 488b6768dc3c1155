-- The ledger row of a message that was set aside and is applied now. One of another payload stays as it is.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
VALUES (?, ?, ?, ?, ?, @semel_now, @semel_batch, ?)
ON DUPLICATE KEY UPDATE
    handled_at = IF(semel_inbox.hash = VALUES(hash) AND semel_inbox.state = 3, VALUES(handled_at), semel_inbox.handled_at),
    batch = IF(semel_inbox.hash = VALUES(hash) AND semel_inbox.state = 3, VALUES(batch), semel_inbox.batch),
    state = IF(semel_inbox.hash = VALUES(hash) AND semel_inbox.state = 3, VALUES(state), semel_inbox.state)
