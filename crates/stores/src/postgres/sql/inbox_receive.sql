-- The ledger for a whole batch: one row per message, inserted unless it is there. In the order of the
-- key, so that two consumers with the same messages wait for each other and never in a circle.
-- A message that was set aside before takes its letter away instead, and one whose letter is gone was
-- applied by somebody else. One that was kept as stale, and now comes from the rightful holder of its
-- lane, takes that letter away and is new.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
        nextval('semel_inbox_batch_number') AS batch
),
arrival AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $3::text[], $4::text[], $5::bytea[], $6::integer[], $7::text[], $8::bigint[], $9::bigint[],
        $10::bigint[], $11::bigint[], $12::bigint[]
    ) WITH ORDINALITY AS a (source, id, hash, size, key, lane, epoch, sequence, at, letter, place)
),
placed AS MATERIALIZED (
    SELECT a.*,
        a.letter IS NULL AND EXISTS (
            SELECT FROM semel_inbox_fence AS f
            WHERE f.grp = $1 AND f.source = a.source AND f.lane = a.lane AND f.key = a.key
                AND a.epoch < f.epoch AND a.sequence <= f.sequence
                AND (a.at < f.since AND a.epoch >= f.prior) IS NOT TRUE
        ) AS stale,
        a.letter IS NULL AND EXISTS (
            SELECT FROM semel_inbox_letter AS l
            WHERE l.grp = $1 AND l.source = a.source AND l.key = a.key AND l.aside <> 4
        ) AS behind
    FROM arrival AS a
),
judged AS MATERIALIZED (
    SELECT p.*,
        CASE
            WHEN p.letter IS NOT NULL THEN p.letter
            WHEN p.lane IS NOT NULL AND NOT p.stale THEN (
                SELECT l.number FROM semel_inbox_letter AS l
                JOIN semel_inbox AS i ON i.grp = l.grp AND i.source = l.source AND i.id = l.id
                WHERE l.grp = $1 AND l.source = p.source AND l.id = p.id AND l.aside = 4
                    AND i.state = 3 AND i.hash = p.hash
                LIMIT 1
            )
        END AS taking
    FROM placed AS p
),
taken AS (
    DELETE FROM semel_inbox_letter AS l
    USING judged AS a
    WHERE l.number = a.taking AND l.grp = $1
    RETURNING l.number
),
fresh AS (
    INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash)
    SELECT now, batch, size, CASE WHEN stale OR behind THEN 3 ELSE $2 END, $1, source, id, hash
    FROM clock, judged
    WHERE letter IS NULL OR letter IN (SELECT number FROM taken)
    ORDER BY source, id
    ON CONFLICT DO NOTHING
    RETURNING source, id, state
),
again AS (
    UPDATE semel_inbox AS i
    SET state = CASE WHEN a.behind THEN 3 ELSE $2 END, handled_at = clock.now, batch = clock.batch
    FROM clock, judged AS a
    JOIN taken ON taken.number = a.taking
    WHERE i.grp = $1 AND i.source = a.source AND i.id = a.id AND i.hash = a.hash AND i.state = 3
    RETURNING i.source, i.id, i.state
),
written AS (SELECT * FROM fresh UNION ALL SELECT * FROM again),
further AS (
    INSERT INTO semel_inbox_fence AS f (epoch, sequence, since, prior, seen_at, lane, grp, source, key)
    SELECT
        a.newest, max(a.sequence), min(a.at) FILTER (WHERE a.epoch = a.newest),
        coalesce(max(a.epoch) FILTER (WHERE a.epoch < a.newest), 0), now, a.lane, $1, a.source, a.key
    FROM (
        SELECT a.*, max(a.epoch) OVER (PARTITION BY a.source, a.lane, a.key) AS newest
        FROM judged AS a JOIN written USING (source, id)
        WHERE a.lane IS NOT NULL AND a.key IS NOT NULL AND written.state <> 3
    ) AS a CROSS JOIN clock
    GROUP BY now, a.source, a.lane, a.key, a.newest
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
        OR (excluded.epoch < f.epoch AND excluded.epoch > f.prior)
    RETURNING 1
)
SELECT
    clock.batch,
    fresh.id IS NOT NULL AS is_new,
    a.stale,
    a.behind,
    taken.number IS NOT NULL AS is_taken,
    old.hash,
    old.state,
    -- Before this batch.
    reach.epoch,
    reach.sequence,
    reach.since,
    reach.prior
FROM clock CROSS JOIN judged AS a
LEFT JOIN fresh ON fresh.source = a.source AND fresh.id = a.id
LEFT JOIN taken ON taken.number = a.taking
LEFT JOIN LATERAL (
    SELECT i.hash, i.state FROM semel_inbox AS i
    -- What is new was not there.
    WHERE fresh.id IS NULL AND i.grp = $1 AND i.source = a.source AND i.id = a.id
    OFFSET 0
) AS old ON true
LEFT JOIN LATERAL (
    SELECT f.epoch, f.sequence, f.since, f.prior FROM semel_inbox_fence AS f
    WHERE f.grp = $1 AND f.source = a.source AND f.lane = a.lane AND f.key = a.key
    OFFSET 0
) AS reach ON true
ORDER BY a.place
