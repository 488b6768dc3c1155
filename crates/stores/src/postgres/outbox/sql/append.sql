-- The next step of a lane, by its holder. NULL: somebody else went on from there, or it was read in another run of
-- the server. Locks the lane.
SELECT semel_outbox_advance(
    $1, $2, $3, $4, $5, $6, $7, $8, $9::text::pg_snapshot, $10::text::pg_snapshot, $11, $12
) AS step
