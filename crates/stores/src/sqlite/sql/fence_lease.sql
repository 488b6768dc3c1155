-- The next token of a resource, in one step. Above all that an epoch before this one can have given: a backup knows
-- neither the tokens nor all the resources of what came after it.
INSERT INTO semel_fence (resource, given, last, passed_at)
SELECT ?1, ((epoch - 1) << 40) + 1, 0, NULL FROM semel_meta WHERE true
ON CONFLICT (resource) DO UPDATE SET given = max(given + 1, excluded.given)
RETURNING given;
