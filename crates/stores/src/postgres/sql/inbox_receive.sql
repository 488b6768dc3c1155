-- The ledger for a whole batch: one row per message, inserted unless it is there. In the order of the
-- key, so that two consumers with the same messages wait for each other and never in a circle.
-- A message that was set aside before takes its letter away instead, and one whose letter is gone was
-- applied by somebody else.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
        nextval('semel_inbox_batch_number') AS batch
),
arrival AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $3::text[], $4::text[], $5::bytea[], $6::integer[], $7::text[], $8::integer[], $9::bigint[],
        $10::bigint[], $11::bigint[]
    ) WITH ORDINALITY AS a (source, id, hash, size, key, lane, epoch, sequence, letter, place)
),
judged AS MATERIALIZED (
    SELECT a.*,
        a.letter IS NULL AND EXISTS (
            SELECT FROM semel_inbox_fence AS f
            WHERE f.grp = $1 AND f.source = a.source AND f.lane = a.lane AND f.key = a.key
                AND (a.epoch, a.sequence) < (f.epoch, f.sequence)
        ) AS stale,
        a.letter IS NULL AND EXISTS (
            SELECT FROM semel_inbox_letter AS l
            WHERE l.grp = $1 AND l.source = a.source AND l.key = a.key AND l.aside <> 4
        ) AS behind
    FROM arrival AS a
),
taken AS (
    DELETE FROM semel_inbox_letter AS l
    USING judged AS a
    WHERE l.number = a.letter AND l.grp = $1
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
    SET state = $2, handled_at = clock.now, batch = clock.batch
    FROM clock, judged AS a
    JOIN taken ON taken.number = a.letter
    WHERE i.grp = $1 AND i.source = a.source AND i.id = a.id AND i.hash = a.hash AND i.state = 3
    RETURNING 1
),
further AS (
    INSERT INTO semel_inbox_fence AS f (epoch, sequence, seen_at, lane, grp, source, key)
    SELECT DISTINCT ON (a.source, a.lane, a.key) a.epoch, a.sequence, now, a.lane, $1, a.source, a.key
    FROM clock, judged AS a JOIN fresh USING (source, id)
    WHERE a.lane IS NOT NULL AND a.key IS NOT NULL AND fresh.state <> 3
    ORDER BY a.source, a.lane, a.key, a.epoch DESC, a.sequence DESC
    ON CONFLICT (grp, source, lane, key) DO UPDATE
    SET epoch = excluded.epoch, sequence = excluded.sequence, seen_at = excluded.seen_at
    WHERE (excluded.epoch, excluded.sequence) > (f.epoch, f.sequence)
    RETURNING 1
)
SELECT
    clock.batch,
    fresh.id IS NOT NULL AS is_new,
    a.stale,
    a.behind,
    taken.number IS NOT NULL AS is_taken,
    old.hash,
    old.state
FROM clock CROSS JOIN judged AS a
LEFT JOIN fresh ON fresh.source = a.source AND fresh.id = a.id
LEFT JOIN taken ON taken.number = a.letter
LEFT JOIN LATERAL (
    SELECT i.hash, i.state FROM semel_inbox AS i
    WHERE i.grp = $1 AND i.source = a.source AND i.id = a.id
    OFFSET 0
) AS old ON true
ORDER BY a.place
