-- The time where no token is wanted, in the shape of draw.sql.
SELECT 0 AS first, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
