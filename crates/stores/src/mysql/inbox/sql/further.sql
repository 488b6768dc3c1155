-- How far relays have come. Only forward.
INSERT INTO semel_inbox_fence (grp, source, lane, `key`, epoch, sequence, seen_at) VALUES
    /*each ,*/(?, ?, ?, ?, ?, ?, @semel_now)/*each*/
ON DUPLICATE KEY UPDATE
    epoch = GREATEST(semel_inbox_fence.epoch, VALUES(epoch)),
    sequence = GREATEST(semel_inbox_fence.sequence, VALUES(sequence)),
    seen_at = VALUES(seen_at)
