-- One maker of tables at a time.
SELECT pg_advisory_xact_lock(x'73656d656c6b6579'::bigint)
