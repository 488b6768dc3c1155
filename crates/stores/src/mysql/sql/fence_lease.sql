-- A number that is never given again, also if the transaction around this is rolled back; then the resource remembers
-- it. Of two that ask at once, the one with the smaller number may come second.
INSERT INTO semel_token (n) VALUES (NULL);
INSERT INTO semel_fence (resource, given, last) VALUES (?, LAST_INSERT_ID(), 0)
ON DUPLICATE KEY UPDATE given = GREATEST(given, LAST_INSERT_ID());
SELECT LAST_INSERT_ID()
