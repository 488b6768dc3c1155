-- Delayed messages whose time has come.
SELECT
    entry
FROM semel_outbox_delayed
WHERE deliver_after <= ?1
ORDER BY deliver_after, entry
LIMIT ?2;
