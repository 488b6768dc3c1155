-- A lane.
SELECT epoch, holder, lease_until, floor, saves FROM semel_outbox_lane WHERE lane = ?1;
