-- New tokens in a row: the first of them, and the time. Numbers of one statement follow each other in
-- every lock mode, because it says beforehand how many it wants.
INSERT INTO semel_token (n) VALUES /*each ,*/(NULL)/*each*/;
SELECT LAST_INSERT_ID() AS first, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
