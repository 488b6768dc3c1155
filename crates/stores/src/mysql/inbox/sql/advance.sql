-- Moves a group on in a partition, if the partition is still the caller's and nothing was skipped back.
UPDATE semel_inbox_offset SET next_offset = ?, moves = moves + 1
WHERE grp = ? AND topic = ? AND part = ? AND generation = ? AND (next_offset IS NULL OR next_offset <= ?)
