-- A database of its own, with a schema of its own: what is sealed must not be where its keys are.
CREATE TABLE IF NOT EXISTS semel_key_schema (version integer PRIMARY KEY);
INSERT INTO semel_key_schema VALUES (1) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS semel_subject_key (
    subject bytea PRIMARY KEY,
    id bytea NOT NULL UNIQUE,
    master text NOT NULL,
    sealed bytea NOT NULL
);
-- What a rotation of the master key has still to wrap anew.
CREATE INDEX IF NOT EXISTS semel_subject_key_master ON semel_subject_key (master, id)
