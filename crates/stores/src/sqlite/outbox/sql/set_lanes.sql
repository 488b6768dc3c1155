-- Messages are spread over so many lanes from now on.
UPDATE semel_outbox_meta SET lanes = ?1;
