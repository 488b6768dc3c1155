INSERT INTO semel_inbox_fence (grp, source, lane, key, epoch, sequence, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (grp, source, lane, key) DO UPDATE
SET epoch = excluded.epoch, sequence = excluded.sequence, seen_at = excluded.seen_at
WHERE (excluded.epoch, excluded.sequence) > (epoch, sequence)
