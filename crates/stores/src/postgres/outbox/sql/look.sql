-- The snapshot this statement sees, in a row by itself, and what it sees in a lane and the snapshot $2 did not. At most $3,
-- in no order. `fits` is false for what somebody wrote into the wrong lane. `run` comes with the snapshot.
SELECT seen, sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after, fits, run
FROM semel_outbox_look($1, $2::text::pg_snapshot, $3)
