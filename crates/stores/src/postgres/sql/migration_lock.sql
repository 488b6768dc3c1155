-- One migrator at a time per database. Gone with the transaction, so it suits a pooler.
SELECT pg_advisory_xact_lock(7308332045906173799)
