-- No message from before a restore has a number from here on: a counter follows the highest it is told.
INSERT INTO semel_outbox (sequence, lane, id, written_at, topic, headers, content_type, payload)
VALUES (?, 0, UNHEX('00000000000000000000000000000000'), 0, 'x', '', '', '')
