-- What is left of a generation goes to what is left of others.
UPDATE semel_operation SET generation = 0
WHERE token IN (
    SELECT token FROM semel_operation INDEXED BY semel_operation_id WHERE generation = ?1 LIMIT ?2
);
