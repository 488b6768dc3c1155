-- What of a lane is set aside waits there, whole. Its row must not become new: it would be published, and could
-- never be set aside under the number that the letter has.
DELETE FROM semel_outbox AS o
USING semel_outbox_aside AS letter
WHERE o.lane = $1 AND letter.lane = $1 AND letter.sequence = o.sequence
