-- What every connection of the store is like, whatever server and account are set to.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    auto_increment_increment = 1, auto_increment_offset = 1;
