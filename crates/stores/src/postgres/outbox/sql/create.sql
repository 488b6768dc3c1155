-- The first step of every lane: nothing is settled, nobody holds it.
INSERT INTO semel_outbox_cursor
    (half, lane, step, epoch, progress, lease_until, home, snapshot, last, until)
SELECT 0, lane, 0, 0, 0, 0, $1, '1:1:', 0, 0 FROM generate_series(0, semel_outbox_lanes() - 1) AS lane
