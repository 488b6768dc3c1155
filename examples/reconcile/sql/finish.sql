-- Last statement of the transaction that has the effect; for an effect elsewhere, of the one that
-- hears how it ended. Parameters: status, body, derived key.
UPDATE receipts SET status = $1, body = $2 WHERE derived_key = $3 AND token IS NOT NULL;
