-- The last that waits in any lane.
SELECT max(sequence) FROM semel_outbox;
