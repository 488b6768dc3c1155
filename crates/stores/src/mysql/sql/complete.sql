-- Stores outcomes of attempts that still hold their leases. Everybody else is told nothing here and
-- asks again one by one. Rows are found by key, always: a small table would be read whole, and locked.
UPDATE semel_operation FORCE INDEX (PRIMARY)
SET settled_at = ?, outcome = CASE id /*each  */WHEN ? THEN ?/*each*/ END, state = 2
WHERE state = 1 AND (/*each  OR */(id = ? AND token = ? AND nonce = ?)/*each*/)
