-- The first letter of a key waits for nobody: it is due, if it only stood behind another.
UPDATE semel_outbox_aside AS letter
SET state = 1, again_at = coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM unnest($3::text[]) AS touched(key)
WHERE letter.state = 3 AND letter.sequence = (
    SELECT first.sequence FROM semel_outbox_aside AS first
    WHERE first.lane = $1 AND first.key = touched.key ORDER BY first.sequence LIMIT 1
)
RETURNING letter.sequence
