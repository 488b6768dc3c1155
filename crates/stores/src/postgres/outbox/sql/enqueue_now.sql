-- The same as enqueue.sql where no message is to be delayed, which is most often: nothing is held twice.
INSERT INTO semel_outbox (at, lane, id, topic, key, headers, content_type, payload, correlation, causation,
    trace_parent, deliver_after)
SELECT coalesce($11, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    semel_outbox_lane(id, key), id, topic, key, headers, content_type, payload, correlation, causation,
    trace_parent, deliver_after
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
    $9::text[], $10::bigint[]
) AS message(id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after)
-- A message must not be published by a commit that a crash can undo. Once per statement, local to the transaction.
WHERE (SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
        ELSE 'durable' END)
    IS NOT NULL
