-- Lanes from this one on are no more.
DELETE FROM semel_outbox_lane WHERE lane >= ?1;
