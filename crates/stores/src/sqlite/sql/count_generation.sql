-- How much is left of a generation, counted so far and no further.
SELECT count(*)
FROM (SELECT 1 FROM semel_operation INDEXED BY semel_operation_id WHERE generation = ?1 LIMIT ?2);
