-- Lets a group read a topic from its beginning again, and refuses what whoever reads it now still wants to commit.
UPDATE semel_inbox_offset
SET next_offset = 0, generation = generation + 1
WHERE grp = $1 AND topic = $2 AND ($3::integer IS NULL OR part = $3)
RETURNING 1
