-- What the ledger has of messages now, held: a snapshot may be older than whoever had these rows before. A join,
-- because a list of ids may be taken for a reason to read, and lock, the whole source.
SELECT i.id, i.hash, i.state, i.batch = @semel_batch
FROM JSON_TABLE(/*json*/, '$[*]' COLUMNS (id varchar(2040) PATH '$')) AS a
STRAIGHT_JOIN semel_inbox AS i FORCE INDEX (PRIMARY) ON i.grp = ? AND i.source = ? AND i.id = UNHEX(a.id)
FOR UPDATE
