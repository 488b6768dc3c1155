-- A file of its own, with a schema of its own: what is sealed must not be where its keys are.
CREATE TABLE semel_key_schema (version INTEGER NOT NULL);
INSERT INTO semel_key_schema VALUES (1);
-- The wrapped keys. A row never moves and never changes its size: SQLite leaves copies behind of rows it
-- moves between pages, and a key that was forgotten must be nowhere. So rows are only appended, and
-- overwritten where they are; none is deleted.
CREATE TABLE semel_key_slot (
    slot INTEGER PRIMARY KEY,
    sealed BLOB NOT NULL CHECK (length(sealed) = 72)
);
-- Slots whose key was forgotten, for the next subjects.
CREATE TABLE semel_key_free (slot INTEGER PRIMARY KEY);
-- Whose key is in which slot. Nothing here opens anything.
CREATE TABLE semel_subject_key (
    subject BLOB PRIMARY KEY CHECK (length(subject) = 32),
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    master TEXT NOT NULL,
    slot INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;
-- What a rotation of the master key has still to wrap anew.
CREATE INDEX semel_subject_key_master ON semel_subject_key (master, id);
