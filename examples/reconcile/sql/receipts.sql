-- One row per operation: receipt, fence and lock in one. SQLite and Postgres.
CREATE TABLE receipts (
    derived_key     TEXT PRIMARY KEY,           -- Semel-Derived-Key: the same for every attempt
    refused_through BIGINT NOT NULL DEFAULT 0,  -- attempts with tokens up to this one are refused
    token           BIGINT,                     -- the attempt that began it
    status          INTEGER,                    -- the answer it got; NULL while nobody knows
    body            TEXT
);
