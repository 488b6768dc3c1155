-- How many are delayed, of the first so many.
SELECT COUNT(*) FROM (SELECT 1 FROM semel_outbox_delayed LIMIT ?) AS some
