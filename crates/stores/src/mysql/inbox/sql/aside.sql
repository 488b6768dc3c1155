-- Sets a message aside. The same message at the same place has one letter, however often it is delivered. What an
-- operator has to judge stays as it is; which that is comes last, because assignments see the ones before them.
INSERT INTO semel_inbox_letter (
    same, since, again_at, tries, aside, grp, source, place, id, subject, `key`, own_key, headers, reason, hash, payload
) VALUES (
    ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON DUPLICATE KEY UPDATE
    tries = IF(semel_inbox_letter.aside IN (1, 3), VALUES(tries), semel_inbox_letter.tries),
    again_at = IF(semel_inbox_letter.aside IN (1, 3), VALUES(again_at), semel_inbox_letter.again_at),
    reason = IF(semel_inbox_letter.aside IN (1, 3), VALUES(reason), semel_inbox_letter.reason),
    aside = IF(semel_inbox_letter.aside IN (1, 3), VALUES(aside), semel_inbox_letter.aside)
