-- A lane changes hands.
UPDATE semel_outbox_meta SET epoch = epoch + 1 RETURNING epoch;
