-- The results of calls: done, with how long each took.
UPDATE semel_inbox AS i
SET state = 2, took_us = d.took_us, handled_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS d (source, id, took_us)
WHERE i.grp = $1 AND i.source = d.source AND i.id = d.id AND i.state = 1
