-- How long a transaction took, for all its messages.
INSERT INTO semel_inbox_batch (batch, began_at, took_us, messages, grp)
SELECT $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $2, $2, $3, $4
