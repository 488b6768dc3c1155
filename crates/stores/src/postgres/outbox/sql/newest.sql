-- The newest step of each lane asked for, and whether it can be believed: `native` is false in what was
-- loaded from a dump, `ahead` is true if it knows transactions this server has not come to.
SELECT
    asked.lane, newest.step, newest.epoch, newest.progress, newest.holder, newest.lease_until, newest.home,
    newest.native, newest.snapshot::text AS snapshot, newest.batch::text AS batch, newest.last, newest.until,
    greatest(pg_snapshot_xmax(newest.snapshot), pg_snapshot_xmax(coalesce(newest.batch, newest.snapshot)))
        > pg_snapshot_xmax(pg_current_snapshot()) AS ahead,
    coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
FROM unnest($1::smallint[]) AS asked(lane)
LEFT JOIN LATERAL (
    SELECT *, xmin = xid::xid AS native FROM semel_outbox_cursor AS log
    WHERE log.lane = asked.lane ORDER BY log.step DESC LIMIT 1
) AS newest ON true
ORDER BY asked.lane
