-- The same as enqueue.sql for one message that is not to be delayed, which is most often.
INSERT INTO semel_outbox (lane, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent)
SELECT semel_outbox_lane($1, $3), $1, $2, $3, $4, $5, $6, $7, $8, $9
-- A message must not be published by a commit that a crash can undo. Local to the transaction.
WHERE CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true)
    ELSE 'durable' END IS NOT NULL
