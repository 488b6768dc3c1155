-- look.sql for several lanes: $1, each with its snapshot of $2 and its limit of $3. The snapshot and the run come in a row by
-- themselves; every other row names its lane.
SELECT seen, sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after, fits, run, lane
FROM semel_outbox_looks($1, $2::text[]::pg_snapshot[], $3)
