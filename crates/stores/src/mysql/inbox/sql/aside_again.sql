-- A letter was tried and failed again. One that is gone was judged meanwhile, and stays gone.
UPDATE semel_inbox_letter
SET aside = ?, tries = ?, reason = ?, again_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?
WHERE number = ? AND grp = ?
