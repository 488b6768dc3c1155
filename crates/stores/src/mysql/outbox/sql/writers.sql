-- The oldest and the newest transaction that has written something and not ended. Readers have no number, or
-- one beyond 48 bits.
SELECT MIN(trx_id), MAX(trx_id)
FROM (SELECT CAST(trx_id AS UNSIGNED) AS trx_id FROM information_schema.innodb_trx) AS open
WHERE trx_id BETWEEN 1 AND 281474976710655
