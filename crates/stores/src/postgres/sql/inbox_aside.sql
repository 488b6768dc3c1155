-- Sets a message aside. The same message at the same place has one letter, however often it is delivered.
WITH clock AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now),
entry AS (
    INSERT INTO semel_inbox AS i (handled_at, batch, size, state, grp, source, id, hash)
    SELECT now, 0, octet_length($12::bytea), 3, $1, $2, $4, $13 FROM clock WHERE $4::text IS NOT NULL
    ON CONFLICT (grp, source, id) DO UPDATE SET state = 3, handled_at = excluded.handled_at
    WHERE i.hash = excluded.hash
    RETURNING 1
)
INSERT INTO semel_inbox_letter AS l (
    since, again_at, tries, aside, grp, source, place, id, subject, key, own_key, headers, reason,
    payload, hash
)
SELECT now, now + $14, $10, $9, $1, $2, $3, $4, $5, $6, $7, $8, $11, $12, $13 FROM clock
ON CONFLICT (grp, source, place, coalesce(id, ''), hash) DO UPDATE
SET aside = excluded.aside, tries = excluded.tries, again_at = excluded.again_at, reason = excluded.reason
WHERE l.aside IN (1, 3)
