-- What waits by topic and lane, of the first so many: how many, since when.
SELECT topic, lane, COUNT(*), MIN(written_at)
FROM (SELECT topic, lane, written_at FROM semel_outbox LIMIT ?) AS some
GROUP BY topic, lane
