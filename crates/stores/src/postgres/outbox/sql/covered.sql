-- Whether everything in a part of the ring is settled, by what every lane has *saved*, and the logs can be
-- believed. In a batch, what has a number up to the last one counts too.
SELECT count(*) = semel_outbox_lanes()
    -- Somebody wrote these past the library, and nobody reads them: at least they stay.
    AND NOT EXISTS (SELECT FROM semel_outbox_0 AS lost WHERE lost.lane < 0)
    AND NOT EXISTS (SELECT FROM semel_outbox_0 AS lost WHERE lost.lane >= semel_outbox_lanes()) AS covered
FROM generate_series(0, semel_outbox_lanes() - 1) AS asked(lane)
CROSS JOIN LATERAL (
    SELECT *, xmin = xid::xid AS native FROM semel_outbox_cursor AS log
    WHERE log.lane = asked.lane ORDER BY log.step DESC LIMIT 1
) AS saved
WHERE saved.native AND (saved.home = $1) IS NOT FALSE
    AND pg_snapshot_xmax(saved.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
    AND (
        (
            NOT EXISTS (
                SELECT FROM semel_outbox_0 AS o
                WHERE o.lane = asked.lane AND o.xid >= pg_snapshot_xmax(saved.snapshot)
            )
            AND NOT EXISTS (
                SELECT FROM semel_outbox_0 AS o
                WHERE o.lane = asked.lane AND o.xid = ANY (ARRAY(SELECT pg_snapshot_xip(saved.snapshot)))
            )
        ) OR (
            saved.batch IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM semel_outbox_0 AS o
                WHERE o.lane = asked.lane AND o.xid >= pg_snapshot_xmax(saved.batch)
            )
            AND NOT EXISTS (
                SELECT FROM semel_outbox_0 AS o
                WHERE o.lane = asked.lane AND o.xid = ANY (ARRAY(SELECT pg_snapshot_xip(saved.batch)))
            )
            AND NOT EXISTS (
                SELECT FROM semel_outbox_0 AS o WHERE o.sequence > saved.last AND o.lane = asked.lane
            )
        )
    )
