-- A batch: what comes back with a token was claimed, what comes back without one was completed.
SELECT id, token, created_at
FROM semel_fly($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
