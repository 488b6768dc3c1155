-- inbox_receive.sql for a batch without letters, planned once per session. No row: something is out of the ordinary.
SELECT batch, is_new, stale, behind, is_taken, hash, state
FROM semel_inbox_receive($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
