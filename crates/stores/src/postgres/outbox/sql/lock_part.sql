-- Whoever gets this knows that no transaction, open or prepared, has rows here that are not committed.
LOCK TABLE semel_outbox_0 IN ACCESS EXCLUSIVE MODE
