-- How far the outbox has come: the last holding of a lane, the last number given.
SELECT epoch, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0) FROM semel_outbox_meta;
