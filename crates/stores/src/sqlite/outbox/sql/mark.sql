-- How far the outbox has come: the last holding of a lane, the last number given, the last rebase. And of which store it is.
SELECT epoch, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0),
       coalesce((SELECT max(epoch) FROM semel_outbox_rebase), 0), (SELECT store_id FROM semel_meta)
FROM semel_outbox_meta;
