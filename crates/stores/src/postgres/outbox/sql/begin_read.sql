-- One snapshot for everything that is read together. No transaction id is taken: a reader's own would
-- move the snapshots of all others.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
-- Rows are found by index and come in its order. The tables have no statistics to tell the planner so.
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_sort = off;
SET LOCAL jit = off;
-- Plans that functions keep are made once.
SET LOCAL plan_cache_mode = force_generic_plan;
