-- Every write is one transaction of its own. All settings are local to it: behind a pooler the next
-- transaction of this session belongs to somebody else.
BEGIN ISOLATION LEVEL READ COMMITTED;
-- Rows are found by key, always. On a table without statistics the planner may think otherwise.
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off;
-- Whoever configured more than a local flush keeps it; less is not durable.
SELECT set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true);
