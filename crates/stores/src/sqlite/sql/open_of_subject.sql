-- How many of a subject's records have not ended.
SELECT count(*) FROM semel_operation WHERE subject = ?1 AND state NOT IN (2, 3);
