-- How far a page looks, at how many records, and when.
SELECT
    COUNT(*) AS seen, MAX(token) AS last,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM (
    SELECT token FROM semel_operation FORCE INDEX (semel_operation_token)
    WHERE token > ?
    ORDER BY token
    LIMIT ?
) AS looked
