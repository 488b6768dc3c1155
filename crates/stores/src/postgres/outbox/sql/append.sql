-- The next step of a lane, by its holder. NULL: somebody else went on from there. Locks the lane.
SELECT semel_outbox_append(
    $1, $2, $3, $4, $5, $6, $7, $8::text::pg_snapshot, $9::text::pg_snapshot, $10, $11
) AS step
