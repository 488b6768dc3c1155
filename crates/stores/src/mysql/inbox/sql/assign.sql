-- Gives a partition to the caller. The generation it gets is larger than any before, which refuses what an earlier
-- reader still wants to commit.
INSERT INTO semel_inbox_offset (grp, topic, part, generation, moves) VALUES (?, ?, ?, 1, 0)
ON DUPLICATE KEY UPDATE generation = semel_inbox_offset.generation + 1;
SELECT generation, next_offset FROM semel_inbox_offset WHERE grp = ? AND topic = ? AND part = ? FOR UPDATE
