-- The step after which a lane goes on here. Its holder, if it still lives, is fenced. Consumers may have seen later
-- epochs than this log knows of, each one more than the last: the time in microseconds is above them all.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
SELECT setting.half, newest.lane, newest.step + 1, greatest(newest.epoch + 1,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), newest.progress + 1, NULL, 0, $2,
    $3::text::pg_snapshot, $4::text::pg_snapshot, $5, $6
FROM semel_outbox_setting AS setting, (
    SELECT * FROM semel_outbox_cursor WHERE lane = $1 ORDER BY step DESC LIMIT 1
) AS newest
RETURNING step
