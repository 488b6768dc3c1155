-- The message under a number of a lane.
SELECT id FROM semel_outbox WHERE sequence = ?1 AND lane = ?2;
