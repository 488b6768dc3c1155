-- The next step of a lane, by its holder. No row: somebody else went on from there. The lane is locked.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, holder, lease_until, home, snapshot, batch, last, until)
SELECT setting.half, $1, newest.step + 1, newest.epoch, $4, $5, coalesce($6,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + $7, newest.home,
    $8::text::pg_snapshot, $9::text::pg_snapshot, $10, $11
FROM semel_outbox_setting AS setting, (
    SELECT step, epoch, home FROM semel_outbox_cursor WHERE lane = $1 ORDER BY step DESC LIMIT 1
) AS newest
WHERE newest.step = $2 AND newest.epoch = $3
ON CONFLICT DO NOTHING
RETURNING step
