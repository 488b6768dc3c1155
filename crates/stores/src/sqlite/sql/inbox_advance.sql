-- Moves a group on in a partition, if the partition is still the caller's and nothing was skipped back.
UPDATE semel_inbox_offset
SET next_offset = ?6
WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND generation = ?4 AND (next_offset IS NULL OR next_offset <= ?5)
