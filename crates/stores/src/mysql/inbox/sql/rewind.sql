-- Lets a group read a topic from its beginning again, and refuses what whoever reads it now still wants to commit.
UPDATE semel_inbox_offset SET next_offset = 0, generation = generation + 1, moves = moves + 1
WHERE grp = ? AND topic = ? AND (? IS NULL OR part = ?)
