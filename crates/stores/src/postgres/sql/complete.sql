-- Stores outcomes of attempts that still hold their leases. Everybody else is told nothing here and
-- asks again one by one.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_operation AS o
SET state = 2, settled_at = clock.now, outcome = done.outcome
FROM unnest($2::bytea[], $3::bigint[], $4::bytea[], $5::bytea[]) AS done (id, token, nonce, outcome), clock
WHERE o.id = done.id
    AND o.token = done.token
    AND o.nonce = done.nonce
    AND o.state = 1
RETURNING o.id
