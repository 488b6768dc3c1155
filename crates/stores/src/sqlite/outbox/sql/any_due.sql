-- Whether there is any.
SELECT EXISTS (SELECT 1 FROM semel_outbox_delayed WHERE deliver_after <= ?1);
