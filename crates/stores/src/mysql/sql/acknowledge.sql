-- An operator accepts this state: a new epoch, at home here.
UPDATE semel_meta
SET epoch = ?, home = ?, acknowledged_by = ?,
    acknowledged_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
