-- No message from before a restore has a number from here on.
UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'semel_outbox';
