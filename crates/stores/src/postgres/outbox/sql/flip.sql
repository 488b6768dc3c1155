-- From now on the other half is written.
UPDATE semel_outbox_setting SET half = 1 - half WHERE half = $1 RETURNING half
