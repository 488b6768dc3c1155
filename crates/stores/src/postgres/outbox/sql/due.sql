-- Delayed messages whose time has come take their place among the others. Rows in use are somebody else's.
WITH due AS (
    DELETE FROM semel_outbox_delayed
    WHERE number = ANY (ARRAY(
        SELECT number FROM semel_outbox_delayed
        WHERE deliver_after <= coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ORDER BY deliver_after, number
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
), moved AS (
    INSERT INTO semel_outbox (at, lane, id, topic, key, headers, content_type, payload, correlation, causation,
        trace_parent, deliver_after)
    SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
        semel_outbox_lane(id, key), id, topic, key, headers, content_type, payload, correlation, causation,
        trace_parent, deliver_after
    FROM due
    ORDER BY deliver_after, number
    RETURNING 1
)
SELECT count(*) AS moved FROM moved
