-- Where in the stream the newest holding of a lane was first seen with a key, and which was the newest before it: what lies
-- before that place was published while nobody else did, however late it is delivered. Not known of the rows that are there.
--
-- A procedure, because MySQL cannot add a column only where there is none.
DROP PROCEDURE IF EXISTS semel_add_since;

CREATE PROCEDURE semel_add_since()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'semel_inbox_fence' AND column_name = 'since'
    ) THEN
        ALTER TABLE semel_inbox_fence ADD COLUMN since bigint, ADD COLUMN prior bigint NOT NULL DEFAULT 0;
    END IF;
END;

CALL semel_add_since();

DROP PROCEDURE IF EXISTS semel_add_since;
