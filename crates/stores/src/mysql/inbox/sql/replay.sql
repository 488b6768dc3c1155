-- Lets a letter be applied again at once. One without an id gets the given one.
UPDATE semel_inbox_letter
SET aside = 1, tries = 0, id = COALESCE(id, ?), again_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE number = ? AND grp = ?
