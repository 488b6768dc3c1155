-- Which of these keys have something set aside beyond the number that goes with them.
SELECT asked.key
FROM unnest($2::text[], $3::bigint[]) AS asked(key, upto)
WHERE EXISTS (
    SELECT FROM semel_outbox_aside AS letter
    WHERE letter.lane = $1 AND letter.key = asked.key AND letter.sequence > asked.upto
)
