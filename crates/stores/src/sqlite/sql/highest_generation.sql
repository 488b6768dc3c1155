-- The highest generation that has records.
SELECT max(generation) FROM semel_operation;
