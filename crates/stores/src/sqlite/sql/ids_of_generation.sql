-- What is in a generation, by its index alone.
SELECT id FROM semel_operation INDEXED BY semel_operation_id WHERE generation = ?1;
