-- The letter of a message that was kept as stale, held.
SELECT number
FROM semel_inbox_letter FORCE INDEX (semel_inbox_letter_id)
WHERE grp = ? AND source = ? AND id = ? AND aside = 4
LIMIT 1
FOR UPDATE
