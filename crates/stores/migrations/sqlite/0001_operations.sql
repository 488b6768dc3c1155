-- One row that describes the store. The token counter lives here and not in the operations,
-- because a token must never restart, and operations are deleted when they expire.
CREATE TABLE semel_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store_id BLOB NOT NULL CHECK (length(store_id) = 16),
    epoch INTEGER NOT NULL,
    token INTEGER NOT NULL
) STRICT;

-- Old keys stay: a fingerprint is compared under the version it was made with.
CREATE TABLE semel_hash_key (
    version INTEGER PRIMARY KEY,
    secret BLOB NOT NULL CHECK (length(secret) = 32),
    made_at INTEGER NOT NULL
) STRICT;

-- Who accepted a restored state, when, and how much was known to be missing.
CREATE TABLE semel_restore (
    epoch INTEGER PRIMARY KEY,
    acknowledged_at INTEGER NOT NULL,
    acknowledged_by TEXT NOT NULL,
    found_epoch INTEGER NOT NULL,
    found_token INTEGER NOT NULL,
    seen_epoch INTEGER NOT NULL,
    seen_token INTEGER NOT NULL
) STRICT;

-- One row per operation. A rowid table, and the token is the rowid: new rows then go to the end
-- of the tree, where a batch of claims shares a few pages. Keyed by the id itself (a digest, so
-- random), every row would land on a page of its own, body included.
--
-- Times and spans are microseconds. The large columns come last, so that reading the others does
-- not walk through them.
CREATE TABLE semel_operation (
    token INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    state INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    recovery INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    run_max INTEGER NOT NULL,
    ttl INTEGER NOT NULL,
    retry_window INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    attempt_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    settled_at INTEGER,
    -- When the sweeper looks at this row next. Written at the claim and by the sweeper alone.
    sweep_at INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    namespace TEXT NOT NULL,
    tenant TEXT,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    subject TEXT,
    print_version INTEGER NOT NULL,
    print_digest BLOB NOT NULL,
    print_paths BLOB,
    history BLOB,
    outcome BLOB
) STRICT;

-- Of two simultaneous claims one inserts; this is what the other would run into.
CREATE UNIQUE INDEX semel_operation_id ON semel_operation (id);

-- A completion does not change sweep_at and so does not touch this index.
CREATE INDEX semel_operation_sweep ON semel_operation (sweep_at);

-- In progress and unknown: few and recent, so the index stays within a few pages however many
-- ended operations are kept, and finding the lapsed ones does not walk through those.
CREATE INDEX semel_operation_open ON semel_operation (token) WHERE state IN (1, 4);

-- Most operations have no subject.
CREATE INDEX semel_operation_subject ON semel_operation (subject) WHERE subject IS NOT NULL;
