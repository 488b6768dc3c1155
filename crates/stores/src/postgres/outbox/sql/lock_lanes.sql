-- Nobody appends to any lane until this transaction ends. In order, so that two who want all do not wait
-- for each other.
SELECT count(pg_advisory_xact_lock('semel_outbox_cursor'::regclass::oid::integer, lane) IS NULL) AS locked
FROM (SELECT lane FROM generate_series(0, semel_outbox_lanes() - 1) AS all_lanes(lane) ORDER BY lane) AS lanes
