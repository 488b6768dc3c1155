-- One completion, fenced.
UPDATE bench_operation
SET state = 2, settled_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, outcome = $4
WHERE id = $1 AND token = $2 AND nonce = $3 AND state = 1
