-- step.sql for several lanes, each of which is in $2 once. A lane that is not free was left alone.
SELECT lane, is_free, step
FROM semel_outbox_steps(
    $1, $2, $3, $4, $5, $6, $7, $8, $9::text[]::pg_snapshot[], $10::text[]::pg_snapshot[], $11, $12, $13
)
