-- Fails if the transaction that tx_begin.sql was in has been rolled back: its savepoint went with it.
RELEASE SAVEPOINT semel_transaction
