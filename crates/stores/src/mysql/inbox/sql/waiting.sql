-- How many letters wait to be tried again.
SELECT COUNT(*) FROM semel_inbox_letter WHERE grp = ? AND aside = 1
