-- The holder gives a lane back, if it still holds it.
UPDATE semel_outbox_lane SET holder = NULL, lease_until = 0 WHERE lane = ? AND epoch = ? AND holder = ?
