-- What is set aside by topic and lane, of the first so many: not dead, dead.
SELECT topic, lane, SUM(aside <> 2), SUM(aside = 2)
FROM (SELECT topic, lane, aside FROM semel_outbox_aside LIMIT ?) AS some
GROUP BY topic, lane
