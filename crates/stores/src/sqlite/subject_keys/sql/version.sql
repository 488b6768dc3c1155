SELECT max(version) FROM semel_key_schema
