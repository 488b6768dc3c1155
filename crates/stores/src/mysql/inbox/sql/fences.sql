-- How far relays had come with these keys in one lane, held.
SELECT f.`key`, f.epoch, f.sequence, f.since, f.prior
FROM JSON_TABLE(/*json*/, '$[*]' COLUMNS (k varchar(1024) PATH '$')) AS a
STRAIGHT_JOIN semel_inbox_fence AS f FORCE INDEX (PRIMARY)
    ON f.grp = ? AND f.source = ? AND f.lane = ? AND f.`key` = UNHEX(a.k)
FOR UPDATE
