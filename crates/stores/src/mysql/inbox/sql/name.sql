-- The ledger row of a letter that is given an id, and whose row it is if the id was known before. Below zero, a batch is the
-- number of such a letter. It waits for whoever is about to apply a message under the id.
INSERT INTO semel_inbox (grp, source, id, state, size, handled_at, batch, hash)
SELECT
    l.grp, l.source, ?, 3, LENGTH(l.payload), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), -l.number, l.hash
FROM semel_inbox_letter AS l
WHERE l.number = ? AND l.grp = ?
ON DUPLICATE KEY UPDATE grp = semel_inbox.grp;
SELECT i.state, i.batch = -l.number
FROM semel_inbox_letter AS l
STRAIGHT_JOIN semel_inbox AS i FORCE INDEX (PRIMARY) ON i.grp = l.grp AND i.source = l.source AND i.id = ?
WHERE l.number = ? AND l.grp = ?
FOR UPDATE
