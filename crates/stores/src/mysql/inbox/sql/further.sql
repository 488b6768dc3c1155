-- How far relays have come. Only forward, and as `Reach` of the core has it: `since` and `prior` first, because what follows sees
-- what was set before.
INSERT INTO semel_inbox_fence (grp, source, lane, `key`, epoch, sequence, since, prior, seen_at) VALUES
    /*each ,*/(?, ?, ?, ?, ?, ?, ?, ?, @semel_now)/*each*/
ON DUPLICATE KEY UPDATE
    since = CASE
        WHEN VALUES(epoch) > semel_inbox_fence.epoch THEN VALUES(since)
        WHEN VALUES(epoch) = semel_inbox_fence.epoch THEN LEAST(semel_inbox_fence.since, VALUES(since))
        ELSE semel_inbox_fence.since
    END,
    prior = CASE
        WHEN VALUES(epoch) > semel_inbox_fence.epoch THEN GREATEST(semel_inbox_fence.epoch, VALUES(prior))
        WHEN VALUES(epoch) = semel_inbox_fence.epoch THEN GREATEST(semel_inbox_fence.prior, VALUES(prior))
        ELSE GREATEST(semel_inbox_fence.prior, VALUES(epoch))
    END,
    epoch = GREATEST(semel_inbox_fence.epoch, VALUES(epoch)),
    sequence = GREATEST(semel_inbox_fence.sequence, VALUES(sequence)),
    seen_at = VALUES(seen_at)
