-- Removes from a lane what its log, which came with a dump, says was published.
--
-- The log's snapshot speaks of transactions of another server. It must not be asked about messages that
-- were written here since the load: their transactions have numbers of this server. Such a message was
-- written after its table was made here, and by its own transaction or a savepoint of it, which has a
-- larger number. (The table's creation is read off its column `ctid`, which nothing ever changes.)
-- Whatever could be one of them stays.
WITH server AS (
    SELECT now.xid & 4294967295 AS low, now.xid - (now.xid & 4294967295) AS high
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid) AS now
), made AS (
    SELECT server.high + created.low - CASE WHEN created.low > server.low THEN 4294967296 ELSE 0 END AS xid
    FROM server, (
        SELECT xmin::text::bigint AS low FROM pg_attribute
        WHERE attrelid = 'semel_outbox'::regclass AND attnum = -1
    ) AS created
)
DELETE FROM semel_outbox AS o
USING server, made
WHERE o.lane = $1
    AND (
        pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot)
        OR ($3::text IS NOT NULL AND o.sequence <= $4 AND pg_visible_in_snapshot(o.xid, $3::text::pg_snapshot))
    )
    AND NOT (
        o.xid::text::bigint >= made.xid
        AND o.xid::text::bigint <= server.high + o.xmin::text::bigint
            - CASE WHEN o.xmin::text::bigint > server.low THEN 4294967296 ELSE 0 END
    )
