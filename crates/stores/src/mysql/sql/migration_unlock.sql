-- The next migrator may go on.
SELECT RELEASE_LOCK(CONCAT('semel:', SHA1(DATABASE())))
