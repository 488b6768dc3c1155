-- The next of a batch, by number, at most $6: numbers above $2 up to $3, visible in $5, not in $4. The set is fixed, whatever
-- commits meanwhile.
SELECT sequence, id, topic, key, headers, content_type, payload, correlation, causation, trace_parent,
    deliver_after, fits
FROM semel_outbox_walk($1, $2, $3, $4::text::pg_snapshot, $5::text::pg_snapshot, $6)
