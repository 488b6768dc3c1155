-- What is set aside, by topic and lane, among the first $1; the last column counts those.
WITH letter AS (SELECT lane, topic, state FROM semel_outbox_aside LIMIT $1)
SELECT lane, topic, count(*) FILTER (WHERE state <> 2) AS aside, count(*) FILTER (WHERE state = 2) AS dead,
    sum(count(*)) OVER ()::bigint AS looked_at
FROM letter
GROUP BY lane, topic
