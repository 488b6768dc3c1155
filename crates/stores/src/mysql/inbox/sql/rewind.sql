-- Lets a group read a topic on at another place, and refuses what whoever reads it now still wants to commit.
UPDATE semel_inbox_offset SET next_offset = ?, generation = generation + 1, moves = moves + 1
WHERE grp = ? AND topic = ? AND (? IS NULL OR part = ?)
