-- What waits by topic and lane, of the first so many.
SELECT topic, lane, count(*), min(written_at)
FROM (SELECT topic, lane, written_at FROM semel_outbox ORDER BY sequence LIMIT ?1)
GROUP BY topic, lane;
