-- How many rows a part of the ring has, and how long the oldest has been there, in microseconds.
SELECT count(*) AS rows, coalesce(coalesce($1,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - min(at), 0) AS age FROM semel_outbox_0
