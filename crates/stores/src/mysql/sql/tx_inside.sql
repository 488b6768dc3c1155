-- Fails where no transaction is open: a savepoint outlives its statement only in one.
SAVEPOINT semel_transaction;
RELEASE SAVEPOINT semel_transaction;
