-- Letters were tried again in vain.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    sequence bigint PATH '$.s', aside int PATH '$.a', tries bigint PATH '$.t', reason varchar(8192) PATH '$.r',
    again_at bigint PATH '$.g'
)) AS j
STRAIGHT_JOIN semel_outbox_aside o ON o.sequence = j.sequence
SET o.aside = j.aside, o.tries = j.tries, o.reason = CONVERT(UNHEX(j.reason) USING utf8mb4), o.since = ?,
    o.again_at = j.again_at
