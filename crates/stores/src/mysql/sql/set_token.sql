-- Tokens go on above this one. The counter does not roll back, and forward is the harmless direction.
INSERT INTO semel_token (n) VALUES (?) ON DUPLICATE KEY UPDATE n = semel_token.n
