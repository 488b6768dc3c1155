-- Whoever held a lane before the restore does not hold it now.
UPDATE semel_outbox_lane SET holder = NULL, lease_until = 0, epoch = ?1;
