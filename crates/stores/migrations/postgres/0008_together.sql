-- A relay holds several lanes, which look and save at about the same time: one look and one commit for all that come
-- together.

-- semel_outbox_look for several lanes, each with the snapshot it was last read in. The first row has only what this
-- statement sees, and the run it belongs to. A lane that was read in this very snapshot has nothing new.
CREATE FUNCTION semel_outbox_looks(lanes smallint[], befores pg_snapshot[], mosts bigint[])
RETURNS TABLE (
    seen text, sequence bigint, id uuid, topic text, key text, headers text, content_type text, payload bytea,
    correlation text, causation text, trace_parent text, deliver_after bigint, fits boolean, run text, lane smallint
)
LANGUAGE plpgsql STABLE
-- As in semel_outbox_look.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET enable_material = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    seen := pg_current_snapshot()::text;
    run := (SELECT this.run::text FROM semel_outbox_run AS this);
    RETURN NEXT;
    IF seen = ALL (befores::text[]) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT NULL::text, new.sequence, new.id, new.topic, new.key, new.headers, new.content_type, new.payload,
        new.correlation, new.causation, new.trace_parent, new.deliver_after,
        semel_outbox_lane(new.id, new.key) = asked.lane, NULL::text, asked.lane
    FROM unnest(lanes, befores, mosts) AS asked(lane, before, most)
    CROSS JOIN LATERAL (
        SELECT recent.* FROM semel_outbox AS recent
        WHERE recent.lane = asked.lane AND recent.xid >= pg_snapshot_xmax(asked.before)
        UNION ALL
        -- Each transaction that was under way is looked up by itself, as in semel_outbox_tail.
        SELECT late.* FROM pg_snapshot_xip(asked.before) AS open(xid)
        CROSS JOIN LATERAL (
            SELECT * FROM semel_outbox AS o WHERE o.lane = asked.lane AND o.xid = open.xid OFFSET 0
        ) AS late
        LIMIT asked.most
    ) AS new;
END
$$;

-- semel_outbox_step for several lanes, each by its holder and at most once, in one transaction. A lane that somebody has
-- locked is left alone (`is_free` is false), so that nobody waits for the lanes of others, nor two for each other.
-- `step` is NULL where semel_outbox_step would say NULL.
CREATE FUNCTION semel_outbox_steps(
    runs text[], lanes smallint[], known_steps bigint[], known_epochs bigint[], progresses bigint[], holders bytea[],
    clock bigint, leases bigint[], snapshots pg_snapshot[], batches pg_snapshot[], lasts bigint[], untils bigint[],
    wait_ms bigint
) RETURNS TABLE (lane smallint, is_free boolean, step bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free smallint[];
BEGIN
    -- Both last until the transaction is over.
    PERFORM semel_durable();
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    free := ARRAY(
        SELECT asked.lane FROM unnest(lanes) AS asked(lane)
        WHERE pg_try_advisory_xact_lock('semel_outbox_cursor'::regclass::oid::integer, asked.lane)
    );
    -- A statement after the locks sees what was committed before they were given.
    RETURN QUERY
    WITH appended AS (
        INSERT INTO semel_outbox_cursor AS log
            (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
        SELECT setting.half, asked.lane, newest.step + 1, newest.epoch, asked.progress, asked.holder,
            coalesce(clock, semel_now()) + asked.lease, newest.home, asked.snapshot, asked.batch, asked.last,
            asked.until
        FROM semel_outbox_setting AS setting
        CROSS JOIN unnest(
            runs, lanes, known_steps, known_epochs, progresses, holders, leases, snapshots, batches, lasts, untils
        ) AS asked(run, lane, step, epoch, progress, holder, lease, snapshot, batch, last, until)
        CROSS JOIN LATERAL (
            SELECT known.step, known.epoch, known.home FROM semel_outbox_cursor AS known
            WHERE known.lane = asked.lane ORDER BY known.step DESC LIMIT 1
        ) AS newest
        WHERE asked.lane = ANY (free) AND newest.step = asked.step AND newest.epoch = asked.epoch
            AND EXISTS (SELECT FROM semel_outbox_run AS this WHERE this.run::text = asked.run)
        ON CONFLICT DO NOTHING
        RETURNING log.lane, log.step
    )
    SELECT asked.lane, asked.lane = ANY (free), (SELECT appended.step FROM appended WHERE appended.lane = asked.lane)
    FROM unnest(lanes) AS asked(lane);
END
$$;
