-- Whether every lane that has a step here has the same or a later one in the other half.
SELECT NOT EXISTS (
    SELECT FROM (SELECT lane, max(step) AS step FROM semel_outbox_cursor_0 GROUP BY lane) AS here
    WHERE NOT EXISTS (
        SELECT FROM semel_outbox_cursor_1 AS there WHERE there.lane = here.lane AND there.step >= here.step
    )
) AS outdated
