-- After an answer was lost: what the holder last saved, taken one step further, so that nothing of its
-- that may still be on the way can land any more. No row: somebody else holds the lane.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
SELECT setting.half, newest.lane, newest.step + 1, newest.epoch, newest.progress, newest.holder,
    coalesce($4, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $5, newest.home,
        newest.snapshot, newest.batch, newest.last, newest.until
FROM semel_outbox_setting AS setting, (
    SELECT * FROM semel_outbox_cursor WHERE lane = $1 ORDER BY step DESC LIMIT 1
) AS newest
WHERE newest.epoch = $2 AND newest.holder = $3
ON CONFLICT DO NOTHING
RETURNING step, epoch, progress, snapshot::text, batch::text, last, until
