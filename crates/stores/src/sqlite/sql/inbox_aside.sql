-- The same message at the same place has one letter, however often it is delivered.
INSERT INTO semel_inbox_letter (
    grp, source, place, id, subject, key, own_key, aside, tries, since, again_at, headers, reason, payload,
    hash
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT (grp, source, place, coalesce(id, ''), hash) DO UPDATE
SET aside = excluded.aside, tries = excluded.tries, again_at = excluded.again_at, reason = excluded.reason
WHERE aside IN (1, 3)
