-- Lets a group read a topic on at another place, and refuses what whoever reads it now still wants to commit.
UPDATE semel_inbox_offset
SET next_offset = $4, generation = generation + 1
WHERE grp = $1 AND topic = $2 AND ($3::integer IS NULL OR part = $3)
RETURNING 1
