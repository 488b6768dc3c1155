-- Where in the stream the newest holding of a lane was first seen with a key, and which was the newest before it: what lies
-- before that place was published while nobody else did, however late it is delivered. Not known of the rows that are there.
ALTER TABLE semel_inbox_fence ADD COLUMN since bigint, ADD COLUMN prior bigint NOT NULL DEFAULT 0;

-- As in 0010_ledger.sql; a message of an older holding than the newest is unusual wherever it stands in its list, because
-- a later one of the same batch may be stale by it. Also for earlier builds, which then ask the statement that knows every case.
CREATE OR REPLACE FUNCTION semel_inbox_unusual(
    of_group text, sources text[], ids text[], keys text[], lanes bigint[], epochs bigint[], sequences bigint[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
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
        RETURN true;
    END IF;
    RETURN array_remove(lanes, NULL) <> '{}' AND EXISTS (
        SELECT FROM unnest(sources, keys, lanes, epochs) AS a (source, key, lane, epoch)
        CROSS JOIN LATERAL (
            SELECT 1 FROM semel_inbox_fence AS f
            WHERE f.grp = of_group AND f.source = a.source AND f.lane = a.lane AND f.key = a.key AND a.epoch < f.epoch
            LIMIT 1
        ) AS further
    );
END
$$;

-- As in 0010_ledger.sql, whose form earlier builds go on calling, and with the places of messages.
--
-- Writes the ledger rows of a batch and says what each message is, in the order of the batch; one row stands for all if
-- all are new. Nothing is written and no row comes back if something is unusual: then the statement that knows these cases is
-- to be asked.
--
-- No message may be twice in it, and none may be a letter. Tables are only reached row by row through their keys, so a plan
-- that was made on empty ones is right for full ones.
CREATE FUNCTION semel_inbox_receive(
    of_group text, asked smallint, sources text[], ids text[], hashes bytea[], sizes integer[], keys text[],
    lanes bigint[], epochs bigint[], sequences bigint[], places bigint[]
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
    now_us bigint := semel_now();
    batch_number bigint;
    fresh_sources text[];
    fresh_ids text[];
    is_all boolean;
BEGIN
    IF semel_inbox_unusual(of_group, sources, ids, keys, lanes, epochs, sequences) THEN
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
    -- Whoever wrote one of them first may have parked its key by the same transaction, since we looked: what comes behind
    -- it must wait. Rows are written already, so the whole is tried again; our own fences come later.
    IF NOT is_all AND semel_inbox_unusual(of_group, sources, ids, keys, lanes, epochs, sequences) THEN
        RAISE EXCEPTION 'another consumer set a message of this batch aside meanwhile' USING ERRCODE = '40001';
    END IF;
    IF array_remove(lanes, NULL) <> '{}' THEN
        INSERT INTO semel_inbox_fence AS f (epoch, sequence, since, prior, seen_at, lane, grp, source, key)
        SELECT
            max(a.epoch), max(a.sequence),
            -- Only when a lane changes hands there are messages of two holdings in a batch.
            CASE WHEN min(a.epoch) = max(a.epoch) THEN min(a.place) ELSE (
                SELECT min(b.place) FROM unnest(sources, keys, lanes, epochs, places) AS b (source, key, lane, epoch, place)
                WHERE b.source = a.source AND b.key = a.key AND b.lane = a.lane AND b.epoch = max(a.epoch)
            ) END,
            CASE WHEN min(a.epoch) = max(a.epoch) THEN 0 ELSE (
                SELECT max(b.epoch) FROM unnest(sources, keys, lanes, epochs) AS b (source, key, lane, epoch)
                WHERE b.source = a.source AND b.key = a.key AND b.lane = a.lane AND b.epoch < max(a.epoch)
            ) END,
            now_us, a.lane, of_group, a.source, a.key
        FROM unnest(sources, ids, keys, lanes, epochs, sequences, places)
            AS a (source, id, key, lane, epoch, sequence, place)
        JOIN unnest(fresh_sources, fresh_ids) AS fresh (source, id) ON fresh.source = a.source AND fresh.id = a.id
        WHERE a.lane IS NOT NULL AND a.key IS NOT NULL
        GROUP BY a.source, a.lane, a.key
        ORDER BY a.source, a.lane, a.key
        ON CONFLICT (grp, source, lane, key) DO UPDATE
        SET epoch = greatest(excluded.epoch, f.epoch), sequence = greatest(excluded.sequence, f.sequence),
            since = CASE
                WHEN excluded.epoch > f.epoch THEN excluded.since
                -- What is not known does not become known by a later message.
                WHEN excluded.epoch = f.epoch AND f.since IS NOT NULL AND excluded.since IS NOT NULL
                    THEN least(f.since, excluded.since)
                WHEN excluded.epoch < f.epoch THEN f.since
            END,
            prior = CASE
                WHEN excluded.epoch > f.epoch THEN greatest(f.epoch, excluded.prior)
                WHEN excluded.epoch = f.epoch THEN greatest(f.prior, excluded.prior)
                ELSE greatest(f.prior, excluded.epoch)
            END,
            seen_at = excluded.seen_at
        WHERE excluded.epoch > f.epoch OR excluded.sequence > f.sequence
            OR (excluded.epoch = f.epoch AND (excluded.since < f.since OR excluded.prior > f.prior))
            OR (excluded.epoch < f.epoch AND excluded.epoch > f.prior);
    END IF;
    IF is_all THEN
        RETURN QUERY SELECT batch_number, true, false, false, false, NULL::bytea, NULL::smallint;
        RETURN;
    END IF;
    -- A statement after the insert sees what those had committed for whom the insert waited.
    RETURN QUERY
    SELECT batch_number, fresh.id IS NOT NULL, false, false, false, old.hash, old.state
    FROM unnest(sources, ids) WITH ORDINALITY AS a (source, id, place)
    LEFT JOIN unnest(fresh_sources, fresh_ids) AS fresh (source, id) ON fresh.source = a.source AND fresh.id = a.id
    LEFT JOIN LATERAL (
        SELECT i.hash, i.state FROM semel_inbox AS i
        WHERE fresh.id IS NULL AND i.grp = of_group AND i.source = a.source AND i.id = a.id
        OFFSET 0
    ) AS old ON true
    ORDER BY a.place;
END
$$;
