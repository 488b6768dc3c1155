-- The result of a call: done, with how long it took.
UPDATE semel_inbox SET state = 2, took_us = ?, handled_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE grp = ? AND source = ? AND id = ? AND state = 1
