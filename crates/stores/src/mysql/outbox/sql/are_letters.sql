-- How many of these letters are those that were read.
SELECT COUNT(*)
FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$.s', id varchar(32) PATH '$.i')) AS j
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = j.sequence AND o.id = UNHEX(j.id) AND o.lane = ?
FOR UPDATE
