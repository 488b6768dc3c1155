-- No holding of a lane from before a restore has such a number.
UPDATE semel_outbox_meta SET epoch = ?1;
