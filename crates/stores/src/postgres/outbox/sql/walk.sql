-- The next of a batch, by number: visible in $5, not in $4. The set is fixed, whatever commits meanwhile.
SELECT sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after, semel_outbox_lane(id, key) = $1 AS fits
FROM semel_outbox
WHERE lane = $1 AND sequence > $2 AND sequence <= $3
    AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot)
    AND NOT pg_visible_in_snapshot(xid, $4::text::pg_snapshot)
ORDER BY sequence
LIMIT $6
