-- What is set aside by topic and lane, of the first so many: not dead, dead.
SELECT topic, lane, count(*) FILTER (WHERE aside <> 2), count(*) FILTER (WHERE aside = 2)
FROM (SELECT topic, lane, aside FROM semel_outbox_aside ORDER BY sequence LIMIT ?1)
GROUP BY topic, lane;
