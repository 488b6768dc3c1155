-- The next step of a lane, by its holder, with nothing beside it in its transaction. NULL: somebody else went on from
-- there, or it was read in another run of the server. Locks the lane, and waits for that no longer than $13 milliseconds.
SELECT semel_outbox_step(
    $1, $2, $3, $4, $5, $6, $7, $8, $9::text::pg_snapshot, $10::text::pg_snapshot, $11, $12, $13
) AS step
