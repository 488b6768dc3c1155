-- How far the outbox has come: the last holding of a lane, the last number given. And of which store it is.
SELECT epoch, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0),
       (SELECT store_id FROM semel_meta)
FROM semel_outbox_meta;
