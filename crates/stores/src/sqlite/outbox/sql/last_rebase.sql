-- The last time somebody took a restored outbox as it is.
SELECT max(epoch) FROM semel_outbox_rebase;
