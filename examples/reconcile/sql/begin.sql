-- First statement of the transaction that has the effect. Parameters: derived key, token (of the
-- headers Semel-Derived-Key and Semel-Token). It returns a row if this attempt may go on. If it
-- returns none, roll back: the operation is done or begun already (answer from its row), or the
-- attempt comes too late and is refused.
--
-- Whoever comes second waits here for the first: the primary key is the lock.
INSERT INTO receipts (derived_key, token)
VALUES ($1, $2)
ON CONFLICT (derived_key) DO UPDATE
    SET token = excluded.token
    WHERE receipts.token IS NULL AND receipts.refused_through < excluded.token
RETURNING token;
