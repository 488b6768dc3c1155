-- Gives a partition to the caller. The generation it gets is larger than any before, which refuses
-- what an earlier reader still wants to commit.
INSERT INTO semel_inbox_offset AS o (generation, next_offset, part, grp, topic)
VALUES (1, NULL, $3, $1, $2)
ON CONFLICT (grp, topic, part) DO UPDATE SET generation = o.generation + 1
RETURNING generation, next_offset
