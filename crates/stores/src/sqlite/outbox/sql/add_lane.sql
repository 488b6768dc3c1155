-- A lane nobody has held.
INSERT INTO semel_outbox_lane (lane, epoch, holder, lease_until, floor, saves)
VALUES (?1, 0, NULL, 0, 0, 0)
ON CONFLICT (lane) DO NOTHING;
