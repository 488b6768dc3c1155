-- What a sink says has landed, if it is still there under that id.
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$.s', id varchar(32) PATH '$.i')) AS j
STRAIGHT_JOIN semel_outbox o ON o.lane = ? AND o.sequence = j.sequence AND o.id = UNHEX(j.id)
