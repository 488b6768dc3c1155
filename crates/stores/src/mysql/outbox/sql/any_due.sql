-- Whether there is any.
SELECT EXISTS (
    SELECT 1 FROM semel_outbox_delayed
    WHERE deliver_after <= COALESCE(?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
)
