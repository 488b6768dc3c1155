-- Ids are digests, so random: in one index over all of them, every claim changes a page that hardly another one changes
-- before the log is moved into the file, the less the more records there are. So the index goes by generation, a stretch of
-- tokens, and claims change pages of the newest one only. Which of the older ones can hold an id, a filter in the memory of
-- each process says; it is made from this index, and everything is found without it, more slowly.

-- A generation is 2 to the power of this many tokens. It never changes: processes must agree on it.
ALTER TABLE semel_meta ADD COLUMN generation_bits INTEGER NOT NULL DEFAULT 18;

-- That of the token, counted from 1. In 0 is what was there before there were generations, and what is left of those of which
-- little is left.
ALTER TABLE semel_operation ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;

-- An id is in one generation only. No constraint can say so; who inserts has looked in all of them, under the write lock.
DROP INDEX semel_operation_id;
CREATE UNIQUE INDEX semel_operation_id ON semel_operation (generation, id);
