-- What waits, by topic and lane, among the first $1 that wait; the last column counts those.
WITH waiting AS (
    SELECT o.lane, o.topic, o.at
    FROM generate_series(0, semel_outbox_lanes() - 1) AS asked(lane)
    CROSS JOIN LATERAL (
        SELECT * FROM semel_outbox_cursor AS log
        WHERE log.lane = asked.lane ORDER BY log.step DESC LIMIT 1
    ) AS saved
    CROSS JOIN LATERAL (
        SELECT * FROM semel_outbox AS recent
        WHERE recent.lane = asked.lane AND recent.xid >= pg_snapshot_xmax(saved.snapshot)
        UNION ALL
        SELECT * FROM semel_outbox AS late
        WHERE late.lane = asked.lane AND late.xid = ANY (ARRAY(SELECT pg_snapshot_xip(saved.snapshot)))
    ) AS o
    WHERE NOT (saved.batch IS NOT NULL AND o.sequence <= saved.last AND pg_visible_in_snapshot(o.xid,
        saved.batch))
    LIMIT $1
)
SELECT lane, topic, count(*) AS waiting, coalesce($2,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - min(at) AS oldest,
    sum(count(*)) OVER ()::bigint AS looked_at
FROM waiting
GROUP BY lane, topic
