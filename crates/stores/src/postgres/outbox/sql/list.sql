-- What waits, of one topic or of all, by number above $2.
SELECT o.lane, o.sequence, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.correlation,
    o.causation, o.trace_parent,
    o.deliver_after
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
    AND o.sequence > $2 AND ($1::text IS NULL OR o.topic = $1)
ORDER BY o.sequence
LIMIT $3
