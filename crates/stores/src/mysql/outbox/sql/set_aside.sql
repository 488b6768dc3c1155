-- From those that wait to those set aside, if they are those that were read; the row there is removed with the settled ones.
INSERT INTO semel_outbox_aside (
    sequence, lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent,
    deliver_after, payload, aside, tries, reason, since, again_at
)
SELECT
    o.sequence, o.lane, o.id, o.written_at, o.topic, o.`key`, o.headers, o.content_type, o.correlation, o.causation,
    o.trace_parent, o.deliver_after, o.payload,
    j.aside, j.tries, CONVERT(UNHEX(j.reason) USING utf8mb4), ?, j.again_at
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    sequence bigint PATH '$.s', id varchar(32) PATH '$.i', aside int PATH '$.a', tries bigint PATH '$.t', reason varchar(8192) PATH '$.r',
    again_at bigint PATH '$.g'
)) AS j
STRAIGHT_JOIN semel_outbox o ON o.lane = ? AND o.sequence = j.sequence AND o.id = UNHEX(j.id)
