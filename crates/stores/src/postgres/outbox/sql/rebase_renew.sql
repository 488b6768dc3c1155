-- What is left in a lane becomes new: a message of this transaction, under its old number.
WITH renewed AS (UPDATE semel_outbox SET xid = pg_current_xact_id() WHERE lane = $1 RETURNING 1)
SELECT count(*) AS renewed FROM renewed
