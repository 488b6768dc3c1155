-- A batch begins: its number, and the time of all its rows.
INSERT INTO semel_inbox_batch (grp, began_at) VALUES (?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));
SET @semel_batch = LAST_INSERT_ID(), @semel_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SELECT @semel_batch
