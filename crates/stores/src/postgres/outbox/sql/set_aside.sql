-- Copies entries of a lane to where they wait, if the step before this statement was appended: by this
-- transaction, for after a lost answer the holder itself may have taken the same step in another.
INSERT INTO semel_outbox_aside
    (sequence, at, since, again_at, tries, state, reason,
    id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after)
SELECT o.sequence, o.at, coalesce($4, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    CASE WHEN put.state = 1 THEN coalesce($4,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + put.again_in END,
    CASE WHEN put.state = 3 THEN 0 ELSE 1 END, put.state, put.reason,
    o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.correlation, o.causation, o.trace_parent,
    o.deliver_after
FROM unnest($5::bigint[], $6::smallint[], $7::bigint[], $8::text[]) AS put(sequence, state, again_in, reason)
JOIN semel_outbox AS o ON o.sequence = put.sequence AND o.lane = $1
WHERE EXISTS (SELECT FROM semel_outbox_cursor WHERE lane = $1 AND step = $2 AND epoch = $3
        AND xid = pg_current_xact_id())
ON CONFLICT (sequence) DO NOTHING
RETURNING sequence
