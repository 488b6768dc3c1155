-- Lets a letter be applied again at once. One without an id gets the given one.
UPDATE semel_inbox_letter SET aside = 1, tries = 0, id = coalesce(id, ?3), again_at = ?4
WHERE grp = ?1 AND number = ?2
