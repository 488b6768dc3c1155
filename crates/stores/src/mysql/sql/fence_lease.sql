-- The next token of a resource, remembered by the session as the last number it made.
INSERT INTO semel_fence (resource, given, last) VALUES (?, LAST_INSERT_ID(1), 0)
ON DUPLICATE KEY UPDATE given = LAST_INSERT_ID(given + 1);
SELECT LAST_INSERT_ID()
