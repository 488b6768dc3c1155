-- The keys of letters a sink says have landed, if they are still those that did.
SELECT o.sequence, o.`key` FROM JSON_TABLE(?, '$[*]' COLUMNS (
    sequence bigint PATH '$.s', id varchar(32) PATH '$.i', tries bigint PATH '$.t'
)) AS j
STRAIGHT_JOIN semel_outbox_aside o
    ON o.sequence = j.sequence AND o.id = UNHEX(j.id) AND o.tries = j.tries AND o.lane = ?
