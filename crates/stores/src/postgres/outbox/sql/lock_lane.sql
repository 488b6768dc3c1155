-- One at a time appends to a lane's log. The lock ends with the transaction, also behind a pooler.
SELECT pg_advisory_xact_lock('semel_outbox_cursor'::regclass::oid::integer, $1) IS NULL AS locked
