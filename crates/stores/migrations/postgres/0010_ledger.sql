-- A batch of a consumer in which nothing is out of the ordinary. The statement that knows every case (letters, keys that
-- wait, fences that were passed) was planned for every batch and carried each message through eight steps, which took
-- longer than the effects did.

-- Writes the ledger rows of a batch and says what each message is, in the order of the batch; one row stands for all if
-- all are new. Nothing is written and no row comes back if a key of theirs is parked, if one was kept as stale before, or
-- if one comes from a relay that had lost its lane: then the statement that knows these cases is to be asked.
--
-- No message may be twice in it, and none may be a letter. Tables are only reached row by row through their keys, so a plan
-- that was made on empty ones is right for full ones.
CREATE FUNCTION semel_inbox_receive(
    of_group text, asked smallint, sources text[], ids text[], hashes bytea[], sizes integer[], keys text[],
    lanes bigint[], epochs bigint[], sequences bigint[]
) RETURNS TABLE (
    batch bigint, is_new boolean, stale boolean, behind boolean, is_taken boolean, hash bytea, state smallint
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    is_fenced boolean := array_remove(lanes, NULL) <> '{}';
    now_us bigint := semel_now();
    batch_number bigint;
    fresh_sources text[];
    fresh_ids text[];
    is_all boolean;
BEGIN
    IF EXISTS (SELECT FROM semel_inbox_letter AS l WHERE l.grp = of_group) AND EXISTS (
        SELECT FROM unnest(sources, ids, keys) AS a (source, id, key)
        CROSS JOIN LATERAL (
            (
                SELECT 1 FROM semel_inbox_letter AS l
                WHERE l.grp = of_group AND l.source = a.source AND l.key = a.key AND l.aside <> 4
                LIMIT 1
            )
            UNION ALL
            (
                SELECT 1 FROM semel_inbox_letter AS l
                WHERE l.grp = of_group AND l.source = a.source AND l.id = a.id AND l.aside = 4
                LIMIT 1
            )
        ) AS parked
    ) THEN
        RETURN;
    END IF;
    IF is_fenced AND EXISTS (
        SELECT FROM unnest(sources, keys, lanes, epochs, sequences) AS a (source, key, lane, epoch, sequence)
        CROSS JOIN LATERAL (
            SELECT 1 FROM semel_inbox_fence AS f
            WHERE f.grp = of_group AND f.source = a.source AND f.lane = a.lane AND f.key = a.key
                AND a.epoch < f.epoch AND a.sequence <= f.sequence
            LIMIT 1
        ) AS further
    ) THEN
        RETURN;
    END IF;
    batch_number := nextval('semel_inbox_batch_number');
    -- In the order of the key, so that two consumers with the same messages wait for each other and never in a circle.
    WITH fresh AS (
        INSERT INTO semel_inbox AS i (handled_at, batch, size, state, grp, source, id, hash)
        SELECT now_us, batch_number, a.size, asked, of_group, a.source, a.id, a.hash
        FROM unnest(sources, ids, hashes, sizes) AS a (source, id, hash, size)
        ORDER BY a.source, a.id
        ON CONFLICT DO NOTHING
        RETURNING i.source, i.id
    )
    SELECT array_agg(fresh.source), array_agg(fresh.id), count(*) = cardinality(ids)
    INTO fresh_sources, fresh_ids, is_all
    FROM fresh;
    IF is_fenced THEN
        INSERT INTO semel_inbox_fence AS f (epoch, sequence, seen_at, lane, grp, source, key)
        SELECT max(a.epoch), max(a.sequence), now_us, a.lane, of_group, a.source, a.key
        FROM unnest(sources, ids, keys, lanes, epochs, sequences) AS a (source, id, key, lane, epoch, sequence)
        JOIN unnest(fresh_sources, fresh_ids) AS fresh (source, id) ON fresh.source = a.source AND fresh.id = a.id
        WHERE a.lane IS NOT NULL AND a.key IS NOT NULL
        GROUP BY a.source, a.lane, a.key
        ORDER BY a.source, a.lane, a.key
        ON CONFLICT (grp, source, lane, key) DO UPDATE
        SET epoch = greatest(excluded.epoch, f.epoch), sequence = greatest(excluded.sequence, f.sequence),
            seen_at = excluded.seen_at
        WHERE excluded.epoch > f.epoch OR excluded.sequence > f.sequence;
    END IF;
    IF is_all THEN
        RETURN QUERY SELECT batch_number, true, false, false, false, NULL::bytea, NULL::smallint;
        RETURN;
    END IF;
    -- A statement after the insert sees what those had committed for whom the insert waited. Of one that was kept as stale
    -- since, nothing is told: this may be the rightful copy, and who asks again finds out.
    RETURN QUERY
    SELECT batch_number, fresh.id IS NOT NULL, false, false, false, old.hash, old.state
    FROM unnest(sources, ids, lanes) WITH ORDINALITY AS a (source, id, lane, place)
    LEFT JOIN unnest(fresh_sources, fresh_ids) AS fresh (source, id) ON fresh.source = a.source AND fresh.id = a.id
    LEFT JOIN LATERAL (
        SELECT i.hash, i.state FROM semel_inbox AS i
        WHERE fresh.id IS NULL AND i.grp = of_group AND i.source = a.source AND i.id = a.id
            AND (
                i.state <> 3 OR a.lane IS NULL OR (
                    SELECT l.number FROM semel_inbox_letter AS l
                    WHERE l.grp = of_group AND l.source = a.source AND l.id = a.id AND l.aside = 4
                    LIMIT 1
                ) IS NULL
            )
        OFFSET 0
    ) AS old ON true
    ORDER BY a.place;
END
$$;
