-- Keys whose first letter may go, the longest due first.
SELECT key FROM semel_outbox_parked WHERE lane = ?1 AND ready_at <= ?2 ORDER BY ready_at, key LIMIT ?3;
