-- Ledger rows of messages. In the order of the key, so that two consumers with the same messages wait for each other
-- and never in a circle. Where a row is, it is held and stays as it is.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash) VALUES
    /*each ,*/(?, ?, ?, ?, ?, @semel_now, @semel_batch, ?)/*each*/
ON DUPLICATE KEY UPDATE grp = semel_inbox.grp
