INSERT INTO semel_inbox_fence (grp, source, lane, key, epoch, sequence, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (grp, source, lane, key) DO UPDATE
SET epoch = max(excluded.epoch, epoch), sequence = max(excluded.sequence, sequence), seen_at = excluded.seen_at
WHERE excluded.epoch > epoch OR excluded.sequence > sequence
