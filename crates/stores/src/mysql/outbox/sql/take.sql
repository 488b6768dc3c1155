-- A lane has a new holder.
UPDATE semel_outbox_lane SET epoch = ?, holder = ?, lease_until = ? WHERE lane = ?
