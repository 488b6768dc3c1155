-- Records that have expired, locked before. A join, because a small table would otherwise be read whole,
-- and wait for whoever holds another row of it; a DELETE takes no word about indexes.
DELETE gone
FROM (/*each  UNION ALL */SELECT CAST(? AS BINARY(32)) AS id/*each*/) AS old
STRAIGHT_JOIN semel_operation AS gone ON gone.id = old.id
