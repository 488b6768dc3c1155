-- When the sweeper shall look at records again.
UPDATE semel_operation AS o
SET sweep_at = again.sweep_at
FROM unnest($1::bytea[], $2::bigint[]) AS again (id, sweep_at)
WHERE o.id = again.id
