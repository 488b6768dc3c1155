-- Which parts of the ring hold anything, and which is being written.
SELECT ring.part, pg_relation_size(format('semel_outbox_%s', ring.part)::regclass) > 0 AS has_rows,
    current.part AS current
FROM generate_series(0, 7) AS ring(part), (
    SELECT ((CASE WHEN is_called THEN last_value ELSE 0 END >> 20) & 7)::integer AS part
    FROM semel_outbox_sequence
) AS current(part)
ORDER BY ring.part
