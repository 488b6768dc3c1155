-- What has committed up to now.
SELECT pg_current_snapshot()::text AS snapshot
