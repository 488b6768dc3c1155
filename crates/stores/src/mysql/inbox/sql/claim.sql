-- Takes a message's ledger row before the message is set aside, and says whether somebody else has applied it
-- meanwhile. It waits for whoever is about to.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
VALUES (?, ?, ?, 3, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, ?)
ON DUPLICATE KEY UPDATE grp = semel_inbox.grp;
SELECT state = 2 AND hash = ? FROM semel_inbox WHERE grp = ? AND source = ? AND id = ? FOR UPDATE
