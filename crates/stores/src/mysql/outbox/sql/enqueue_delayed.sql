-- Messages whose time is to come, in their writer's transaction.
INSERT INTO semel_outbox_delayed (
    lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, trace_parent, deliver_after,
    payload
) VALUES
    /*each ,*/(
        CRC32(?) % 8, ?, COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
        ?, ?, ?, ?, ?, ?, ?, ?, ?
    )/*each*/
