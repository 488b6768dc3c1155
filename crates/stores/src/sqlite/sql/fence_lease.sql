-- The next token of a resource, in one step.
INSERT INTO semel_fence (resource, given, last, passed_at) VALUES (?1, 1, 0, NULL)
ON CONFLICT (resource) DO UPDATE SET given = given + 1
RETURNING given;
