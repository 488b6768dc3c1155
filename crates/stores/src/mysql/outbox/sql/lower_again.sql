-- The row that told it.
DELETE FROM semel_outbox WHERE lane = 0 AND sequence = ?
