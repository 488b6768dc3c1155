-- The newest token of a resource and the last that wrote, held until the transaction ends; then this one writes, if
-- it was given and none after it has.
SELECT given, last FROM semel_fence WHERE resource = ? FOR UPDATE;
UPDATE semel_fence SET last = ?, passed_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE resource = ? AND last <= ? AND given >= ?
