-- How many messages wait for their time, $1 at most.
SELECT count(*) AS delayed FROM (SELECT FROM semel_outbox_delayed LIMIT $1) AS some_of_them
