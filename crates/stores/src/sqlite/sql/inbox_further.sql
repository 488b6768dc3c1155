-- They have come further. What was there was looked at in the same transaction.
INSERT INTO semel_inbox_fence (grp, source, lane, key, epoch, sequence, since, prior, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (grp, source, lane, key) DO UPDATE
SET epoch = excluded.epoch, sequence = excluded.sequence, since = excluded.since, prior = excluded.prior,
    seen_at = excluded.seen_at
