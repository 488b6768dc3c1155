-- What is left of a generation goes to what is left of others. An id that is there already stays where it is: it has two records,
-- which must not be, and must not stop the sweeper.
UPDATE OR IGNORE semel_operation SET generation = 0
WHERE token IN (
    SELECT token FROM semel_operation INDEXED BY semel_operation_id WHERE generation = ?1 LIMIT ?2
);
