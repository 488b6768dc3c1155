-- The holder saves: until when the lane is held, and how far it has come.
UPDATE semel_outbox_lane SET lease_until = ?, saves = ?, settled = GREATEST(settled, ?) WHERE lane = ?
