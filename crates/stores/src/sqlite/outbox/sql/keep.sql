-- The holder saves: how far the lane has come, and until when it is held.
UPDATE semel_outbox_lane SET lease_until = ?2, floor = ?3, saves = ?4 WHERE lane = ?1;
