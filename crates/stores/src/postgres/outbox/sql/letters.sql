-- Letters of a lane that are due, each with those of its key behind it, at most $3 in all. Only the first
-- of a key can be due.
SELECT letter.sequence, letter.id, letter.topic, letter.key, letter.headers, letter.content_type,
    letter.payload, letter.correlation, letter.causation, letter.trace_parent, letter.deliver_after,
    letter.tries, letter.state, letter.sequence = head.sequence AS is_head
FROM (
    SELECT due.sequence, due.key, due.again_at
    FROM semel_outbox_aside AS due
    WHERE due.lane = $1 AND due.state = 1 AND due.again_at <= coalesce($2,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        AND NOT EXISTS (
            SELECT FROM semel_outbox_aside AS earlier
            WHERE earlier.lane = $1 AND earlier.key = due.key AND earlier.sequence < due.sequence
        )
    ORDER BY due.again_at
    LIMIT $3
) AS head
CROSS JOIN LATERAL (
    (SELECT * FROM semel_outbox_aside AS itself WHERE itself.sequence = head.sequence)
    UNION ALL
    (SELECT * FROM semel_outbox_aside AS follower
    WHERE follower.lane = $1 AND follower.key = head.key AND follower.sequence > head.sequence
    ORDER BY follower.sequence
    LIMIT $3)
) AS letter
ORDER BY head.again_at, head.sequence, letter.sequence
LIMIT $3
