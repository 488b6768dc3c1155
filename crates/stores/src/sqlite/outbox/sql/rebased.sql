-- Who took a restored outbox as it is.
INSERT INTO semel_outbox_rebase (epoch, rebased_at, rebased_by) VALUES (?1, ?2, ?3);
