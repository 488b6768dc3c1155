-- What a relay does for every batch, a look and a step, brings its settings along. A dozen of them in front, each a
-- statement, took the server longer than the messages did.

-- A message tells its lane itself. The trigger that filled it in made every other insert prepare its condition and the
-- constraint of its part, which took half as long as the insert. Who forgets it is told how.
DROP TRIGGER semel_outbox_fill_lane ON semel_outbox;
DROP FUNCTION semel_outbox_fill_lane();
CREATE FUNCTION semel_outbox_untold() RETURNS smallint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'a message for the outbox has no lane'
        USING ERRCODE = 'not_null_violation',
        HINT = 'INSERT INTO semel_outbox (lane, id, key, …) SELECT semel_outbox_lane(m.id, m.key), m.id, m.key, …';
END
$$;
ALTER TABLE semel_outbox ALTER COLUMN lane SET DEFAULT semel_outbox_untold();

-- Which run of the server this is. A server that crashes gives the numbers of transactions that left no trace to
-- others, and a relay that outlives it may have seen them: it would take the later ones for settled. A crash empties
-- an unlogged table, and so does a standby that takes over; an orderly restart, which forgets no number, does not.
CREATE UNLOGGED TABLE semel_outbox_run (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    run uuid NOT NULL DEFAULT gen_random_uuid()
);

-- The first row has only the snapshot in which the others are what is new: what the statement sees in a lane and
-- `before` did not. STABLE: everything inside sees what the statement sees, and that is the snapshot it tells.
-- `fits` is false for what somebody wrote into the wrong lane. With the snapshot comes the run it belongs to.
CREATE FUNCTION semel_outbox_look(of_lane smallint, before pg_snapshot, most bigint)
RETURNS TABLE (
    seen text, sequence bigint, id uuid, topic text, key text, headers text, content_type text, payload bytea,
    correlation text, causation text, trace_parent text, deliver_after bigint, fits boolean, run text
)
LANGUAGE plpgsql STABLE
-- Rows are found by index and come in its order. The tables have no statistics to tell the planner so.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
-- The plan is made once.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    seen := pg_current_snapshot()::text;
    run := (SELECT this.run::text FROM semel_outbox_run AS this);
    RETURN NEXT;
    -- As in semel_outbox_tail: each transaction that was under way is looked up by itself.
    RETURN QUERY
    SELECT NULL::text, recent.sequence, recent.id, recent.topic, recent.key, recent.headers, recent.content_type,
        recent.payload, recent.correlation, recent.causation, recent.trace_parent, recent.deliver_after,
        semel_outbox_lane(recent.id, recent.key) = of_lane, NULL::text
    FROM semel_outbox AS recent
    WHERE recent.lane = of_lane AND recent.xid >= pg_snapshot_xmax(before)
    UNION ALL
    SELECT NULL::text, late.sequence, late.id, late.topic, late.key, late.headers, late.content_type,
        late.payload, late.correlation, late.causation, late.trace_parent, late.deliver_after,
        semel_outbox_lane(late.id, late.key) = of_lane, NULL::text
    FROM pg_snapshot_xip(before) AS open(xid)
    CROSS JOIN LATERAL (
        SELECT * FROM semel_outbox AS o WHERE o.lane = of_lane AND o.xid = open.xid OFFSET 0
    ) AS late
    LIMIT most;
END
$$;

-- semel_outbox_append by who read the lane in this run of the server; NULL also for others.
CREATE FUNCTION semel_outbox_advance(
    of_run text, of_lane smallint, known_step bigint, known_epoch bigint, new_progress bigint, new_holder bytea,
    clock bigint, lease bigint, new_snapshot pg_snapshot, new_batch pg_snapshot, new_last bigint, new_until bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM semel_outbox_run AS this WHERE this.run::text = of_run) THEN
        RETURN NULL;
    END IF;
    RETURN semel_outbox_append(
        of_lane, known_step, known_epoch, new_progress, new_holder, clock, lease, new_snapshot, new_batch, new_last,
        new_until
    );
END
$$;

-- The same with what its transaction needs: as durable as any, and with a limit to the wait for the lane.
CREATE FUNCTION semel_outbox_step(
    of_run text, of_lane smallint, known_step bigint, known_epoch bigint, new_progress bigint, new_holder bytea, clock bigint,
    lease bigint, new_snapshot pg_snapshot, new_batch pg_snapshot, new_last bigint, new_until bigint, wait_ms bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
    -- Both last until the transaction is over.
    PERFORM semel_durable();
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    RETURN semel_outbox_advance(
        of_run, of_lane, known_step, known_epoch, new_progress, new_holder, clock, lease, new_snapshot, new_batch,
        new_last, new_until
    );
END
$$;

-- A ledger row is looked up by its whole key, and the sweeper's index must not tempt the planner away from that: of a group
-- that its statistics do not know it believes that there are no rows, takes the smaller index, and then reads the whole
-- group for every message. Under a collation that only the sweeper names, nobody else can use it.
DROP INDEX semel_inbox_sweep;
CREATE INDEX semel_inbox_sweep ON semel_inbox (grp COLLATE "C", handled_at);
DROP INDEX semel_inbox_fence_sweep;
CREATE INDEX semel_inbox_fence_sweep ON semel_inbox_fence (grp COLLATE "C", seen_at);
