-- Where in the stream the newest holding of a lane was first seen with a key, and which was the newest before it: what lies
-- before that place was published while nobody else did, however late it is delivered. Not known of the rows that are there.
ALTER TABLE semel_inbox_fence ADD COLUMN since INTEGER;
ALTER TABLE semel_inbox_fence ADD COLUMN prior INTEGER NOT NULL DEFAULT 0;
