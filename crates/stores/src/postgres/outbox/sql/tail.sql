-- What this transaction sees in a lane and the snapshot $2 did not. At most $3, in no order. `fits` is false for what
-- somebody wrote into the wrong lane.
SELECT sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after, semel_outbox_lane(id, key) = $1 AS fits
FROM semel_outbox_tail($1, $2::text::pg_snapshot, $3)
