-- A key has something set aside.
INSERT INTO semel_outbox_parked (key, lane, ready_at) VALUES (?1, ?2, ?3)
ON CONFLICT (key) DO UPDATE SET lane = excluded.lane, ready_at = excluded.ready_at;
