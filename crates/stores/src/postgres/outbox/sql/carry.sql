-- Copies the newest step of lanes that moved too little to have one in the half that is written. A holder
-- notices nothing: the step is the same. What was loaded from a dump must not be made to look native.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
SELECT $1, newest.lane, newest.step, newest.epoch, newest.progress, newest.holder, newest.lease_until,
    newest.home, newest.snapshot, newest.batch, newest.last, newest.until
FROM generate_series(0, semel_outbox_lanes() - 1) AS asked(lane)
CROSS JOIN LATERAL (
    SELECT *, xmin = xid::xid AS native FROM semel_outbox_cursor AS log
    WHERE log.lane = asked.lane ORDER BY log.step DESC LIMIT 1
) AS newest
WHERE newest.half <> $1 AND newest.native
ON CONFLICT DO NOTHING
RETURNING lane
