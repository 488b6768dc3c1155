-- How many messages of a lane a believable log has not settled.
SELECT count(*) AS waiting FROM semel_outbox AS o
WHERE o.lane = $1 AND NOT pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot)
    AND NOT ($3::text IS NOT NULL AND o.sequence <= $4 AND pg_visible_in_snapshot(o.xid, $3::text::pg_snapshot))
