-- One migrator at a time per database. Gone with the session, whatever becomes of it.
SELECT GET_LOCK(CONCAT('semel:', SHA1(DATABASE())), ?)
