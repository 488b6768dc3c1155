-- Settled: everything of a lane above one number and up to another. What that was.
DELETE FROM semel_outbox WHERE sequence > ?1 AND sequence <= ?2 AND lane = ?3 RETURNING sequence, id;
