-- How many are delayed, of the first so many.
SELECT count(*) FROM (SELECT 1 FROM semel_outbox_delayed LIMIT ?1);
