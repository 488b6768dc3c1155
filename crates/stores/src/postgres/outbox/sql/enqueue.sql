-- Messages of the caller's transaction, one array per column, in the order they are to be published.
-- Those whose time has not come are kept apart. (By the time of the statement: a clock that runs on could
-- find a message in time for both.)
WITH message AS (
    SELECT * FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
        $9::text[], $10::bigint[]
    ) WITH ORDINALITY AS message(
        id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after,
            place
    )
), delayed AS (
    INSERT INTO semel_outbox_delayed
        (id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after)
    SELECT id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after
    FROM message
    WHERE deliver_after > coalesce($11, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
    ORDER BY place
)
INSERT INTO semel_outbox (at, lane, id, topic, key, headers, content_type, payload, correlation, causation,
    trace_parent, deliver_after)
SELECT coalesce($11, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
    semel_outbox_lane(id, key), id, topic, key, headers, content_type, payload, correlation, causation,
    trace_parent, deliver_after
FROM message
WHERE (deliver_after > coalesce($11, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)) IS NOT TRUE
    -- A message must not be published by a commit that a crash can undo. Once per statement, local to the transaction.
    AND (SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
        ELSE 'durable' END)
        IS NOT NULL
ORDER BY place
