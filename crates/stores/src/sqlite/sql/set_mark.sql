-- Tokens were given, or an epoch began.
UPDATE semel_meta SET epoch = ?1, token = ?2;
