-- The same where no message was ever written.
INSERT INTO sqlite_sequence (name, seq) VALUES ('semel_outbox', ?1);
