-- Which history this server writes: a promoted standby or a restored backup begins another.
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline
