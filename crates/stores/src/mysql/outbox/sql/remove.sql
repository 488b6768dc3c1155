-- Settled, if they are those that were read. By whole primary keys: a range, or IN, would wait for rows others have not
-- committed.
DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (sequence bigint PATH '$.s', id varchar(32) PATH '$.i')) AS j
STRAIGHT_JOIN semel_outbox o ON o.lane = ? AND o.sequence = j.sequence AND o.id = UNHEX(j.id)
