-- A lane, held until the transaction ends, and the time, read once it is.
SELECT epoch, holder, lease_until, saves, settled FROM semel_outbox_lane WHERE lane = ? FOR UPDATE
