-- A letter was tried and failed again. One that is gone was judged meanwhile, and stays gone.
UPDATE semel_inbox_letter
SET aside = $3, tries = $4, reason = $5, again_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $6
WHERE grp = $1 AND number = $2
