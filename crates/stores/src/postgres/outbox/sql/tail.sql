-- What this transaction sees in a lane and the snapshot $2 did not: transactions that began after it, and
-- those that were under way in it. (All others were over: seen then, or never.) At most $3, in no order.
SELECT sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after
FROM semel_outbox
WHERE lane = $1 AND xid >= pg_snapshot_xmax($2::text::pg_snapshot)
UNION ALL
SELECT sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after
FROM semel_outbox
WHERE lane = $1 AND xid = ANY (ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot)))
LIMIT $3
