-- Takes a lane that is free. It is locked, and its newest step was looked at.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
SELECT setting.half, newest.lane, newest.step + 1, newest.epoch + 1, newest.progress, $2,
    coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $4,
    coalesce(newest.home, $5), newest.snapshot, newest.batch, newest.last, newest.until
FROM semel_outbox_setting AS setting, (
    SELECT * FROM semel_outbox_cursor WHERE lane = $1 ORDER BY step DESC LIMIT 1
) AS newest
ON CONFLICT DO NOTHING
RETURNING step, epoch, progress, snapshot::text, batch::text, last, until,
    (SELECT this.run::text FROM semel_outbox_run AS this)
