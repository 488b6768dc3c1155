-- Gives a partition to the caller, and refuses what an earlier reader still wants to commit.
INSERT INTO semel_inbox_offset (grp, topic, part, generation) VALUES (?1, ?2, ?3, 1)
ON CONFLICT (grp, topic, part) DO UPDATE SET generation = generation + 1
RETURNING generation, next_offset
