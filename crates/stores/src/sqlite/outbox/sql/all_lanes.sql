-- Every lane.
SELECT lane, epoch, holder, lease_until FROM semel_outbox_lane ORDER BY lane;
