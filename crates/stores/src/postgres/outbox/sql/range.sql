-- The smallest and the largest number of what is visible in $3 and not in $2.
SELECT min(sequence) AS first, max(sequence) AS until
FROM (
    SELECT sequence FROM semel_outbox
    WHERE lane = $1 AND xid >= pg_snapshot_xmax($2::text::pg_snapshot)
        AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)
    UNION ALL
    SELECT sequence FROM semel_outbox
    WHERE lane = $1 AND xid = ANY (ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot)))
        AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)
) AS batch
