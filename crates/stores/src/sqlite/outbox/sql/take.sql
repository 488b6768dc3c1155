-- A lane has a new holder.
UPDATE semel_outbox_lane SET epoch = ?2, holder = ?3, lease_until = ?4 WHERE lane = ?1;
