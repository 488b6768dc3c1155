-- Another message in the place of a dead letter, and due.
UPDATE semel_outbox_aside AS letter
SET state = 1, again_at = coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), tries = 0,
    id = new.id, topic = new.topic, headers = new.headers, content_type = new.content_type,
    payload = new.payload, correlation = new.correlation, causation = new.causation,
    trace_parent = new.trace_parent, deliver_after = new.deliver_after
FROM unnest(
    $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::text[],
    $11::text[], $12::bigint[]
) AS new(id, topic, key, headers, content_type, payload, correlation, causation, trace_parent, deliver_after)
WHERE letter.sequence = $1
RETURNING letter.sequence
