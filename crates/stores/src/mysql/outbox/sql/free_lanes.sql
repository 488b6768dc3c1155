-- Whoever held a lane before the restore does not hold it now. All numbers up to this one count as settled: those of the lost
-- state are among them.
UPDATE semel_outbox_lane SET holder = NULL, lease_until = 0, epoch = ?, settled = GREATEST(settled, ?)
