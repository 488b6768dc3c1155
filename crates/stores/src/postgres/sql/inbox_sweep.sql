-- Deletes what was settled long ago. Rows somebody works on are left for the next time, so it waits for
-- nobody. Calls without a result and messages whose letter is still there stay. (The collation is that of the
-- sweeper's indexes, which nobody else is to use.)
WITH clock AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $2 AS until),
old AS MATERIALIZED (
    SELECT i.grp, i.source, i.id
    FROM semel_inbox AS i
    WHERE i.grp COLLATE "C" = $1 AND i.handled_at < (SELECT until FROM clock) AND i.state <> 1
        AND NOT (
            i.state = 3 AND EXISTS (
                SELECT FROM semel_inbox_letter AS l WHERE l.grp = i.grp AND l.source = i.source AND l.id = i.id
            )
        )
    ORDER BY i.handled_at
    LIMIT $3
    FOR UPDATE OF i SKIP LOCKED
),
gone AS (
    DELETE FROM semel_inbox AS i USING old
    WHERE i.grp = old.grp AND i.source = old.source AND i.id = old.id
    RETURNING 1
),
batches AS (
    DELETE FROM semel_inbox_batch WHERE batch IN (
        SELECT batch FROM semel_inbox_batch
        WHERE grp = $1 AND began_at < (SELECT until FROM clock)
        ORDER BY began_at LIMIT $3 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
),
fences AS (
    DELETE FROM semel_inbox_fence WHERE (grp, source, lane, key) IN (
        SELECT grp, source, lane, key FROM semel_inbox_fence
        WHERE grp COLLATE "C" = $1 AND seen_at < (SELECT until FROM clock)
        ORDER BY seen_at LIMIT $3 FOR UPDATE SKIP LOCKED
    )
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM batches), (SELECT count(*) FROM fences)
