-- Who took a restored outbox as it is, and from where it goes on.
UPDATE semel_outbox_meta SET epoch = ?, home = ?, rebased_by = ?, rebased_at = ?
