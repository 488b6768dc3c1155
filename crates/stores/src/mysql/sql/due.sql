-- Whom the sweeper looks at next. Nothing is locked yet.
SELECT id, sweep_at
FROM semel_operation FORCE INDEX (semel_operation_sweep)
WHERE sweep_at >= ? AND sweep_at <= ?
ORDER BY sweep_at
LIMIT ?
