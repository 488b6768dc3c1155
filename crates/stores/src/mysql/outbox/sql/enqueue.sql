-- Messages, in their writer's transaction. Numbers of one statement follow each other in every lock mode,
-- because it says beforehand how many it wants.
INSERT INTO semel_outbox (
    lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent, deliver_after,
    payload
) VALUES
    /*each ,*/(
        CRC32(?) % 8, ?, COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
        ?, ?, ?, ?, ?, ?, ?, ?, ?
    )/*each*/
