-- A relay that has fallen behind goes through a backlog by number, a thousand messages at a time. The statement for it was
-- planned each time, over the eight parts of the ring, which took the server about as long as reading the messages. Now a
-- session keeps its plan.

-- The next of a batch, by number: visible in `snapshot`, not in `before`. The set is fixed, whatever commits meanwhile.
-- `fits` is false for what somebody wrote into the wrong lane.
CREATE FUNCTION semel_outbox_walk(
    of_lane smallint, last bigint, until bigint, before pg_snapshot, snapshot pg_snapshot, most bigint
) RETURNS TABLE (
    sequence bigint, id uuid, topic text, key text, headers text, content_type text, payload bytea, correlation text,
    causation text, trace_parent text, deliver_after bigint, fits boolean
)
LANGUAGE plpgsql STABLE
-- Rows are found by index and come in its order. The tables have no statistics to tell the planner so.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
-- The plan is made once.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT o.sequence, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.correlation, o.causation,
        o.trace_parent, o.deliver_after, semel_outbox_lane(o.id, o.key) = of_lane
    FROM semel_outbox AS o
    WHERE o.lane = of_lane AND o.sequence > last AND o.sequence <= until
        AND pg_visible_in_snapshot(o.xid, snapshot)
        AND NOT pg_visible_in_snapshot(o.xid, before)
    ORDER BY o.sequence
    LIMIT most;
END
$$;
