-- When the next letter of a lane may go.
SELECT min(at) FROM (
    SELECT min(ready_at) AS at FROM semel_outbox_parked WHERE lane = ?1 AND ready_at IS NOT NULL
    UNION ALL
    SELECT min(again_at) FROM semel_outbox_aside WHERE lane = ?1 AND key IS NULL AND aside = 1
);
