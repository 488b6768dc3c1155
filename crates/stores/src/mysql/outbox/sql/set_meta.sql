-- A lane changes hands, here.
UPDATE semel_outbox_meta SET epoch = ?, home = ?
