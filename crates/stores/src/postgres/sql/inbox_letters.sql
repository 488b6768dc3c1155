-- A page of letters.
SELECT
    number, since, again_at, tries, aside, grp, source, place, id, subject, own_key, headers, reason, payload
FROM semel_inbox_letter
WHERE grp = $1 AND number > $2 AND ($3::smallint IS NULL OR aside = $3)
ORDER BY number
LIMIT $4
