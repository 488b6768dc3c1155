-- The tables of a Semel store. Names carry no schema: they live in the first schema of the
-- search path, so that one database can hold several stores.

-- What was applied, and which builds may use the result. Read before anything else is.
CREATE TABLE semel_schema (
    version         integer PRIMARY KEY,
    name            text    NOT NULL,
    checksum        bytea   NOT NULL,
    applied_at      bigint  NOT NULL,
    minimum_reader  integer NOT NULL
);

-- One row about the store as a whole. Hardly ever written: a row every claim had to touch would
-- put all claims in one queue.
CREATE TABLE semel_meta (
    one              boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_id         bytea   NOT NULL CHECK (octet_length(store_id) = 16),
    epoch            bigint  NOT NULL,
    -- Cluster and database this state was made or acknowledged in. A dump restored elsewhere
    -- carries the old value, and is noticed by it. NULL where the server does not tell.
    home             text,
    acknowledged_by  text,
    acknowledged_at  bigint
);

-- The secrets of fingerprints. Old ones stay: records made under them must stay comparable.
CREATE TABLE semel_hash_key (
    version     integer PRIMARY KEY,
    secret      bytea   NOT NULL CHECK (octet_length(secret) = 32),
    created_at  bigint  NOT NULL
);

-- Tokens. A sequence never rolls back and never gives a number twice, which is what a token must
-- not do; gaps do no harm. CACHE 1, because numbers cached in sessions come out of order.
CREATE SEQUENCE semel_token AS bigint MINVALUE 1 CACHE 1 NO CYCLE;

-- One row per operation. Times are microseconds since 1970 on this server's clock.
-- Numbers stand before texts to save padding.
CREATE TABLE semel_operation (
    token        bigint   NOT NULL,
    created_at   bigint   NOT NULL,
    attempt_at   bigint   NOT NULL,
    lease_until  bigint   NOT NULL,
    settled_at   bigint,
    sweep_at     bigint   NOT NULL,
    lease_us     bigint   NOT NULL,
    run_max_us   bigint   NOT NULL,
    ttl_us       bigint   NOT NULL,
    window_us    bigint   NOT NULL,
    fp_version   integer  NOT NULL,
    attempts     integer  NOT NULL,
    -- 1 in progress, 2 completed, 3 released, 4 unknown, 5 tombstone
    state        smallint NOT NULL,
    -- 1 rerun, 2 hold, 3 ask
    recovery     smallint NOT NULL,
    id           bytea    NOT NULL,
    nonce        bytea    NOT NULL,
    fp_digest    bytea    NOT NULL,
    fp_paths     bytea    NOT NULL,
    namespace    text     NOT NULL,
    tenant       text,
    route        text     NOT NULL,
    key          text     NOT NULL,
    subject      text,
    outcome      bytea,
    history      bytea,
    CONSTRAINT semel_operation_id PRIMARY KEY (id),
    -- One constraint, not five: each is prepared anew by every statement.
    CONSTRAINT semel_operation_shape CHECK (
        octet_length(id) = 32 AND octet_length(nonce) = 16 AND state BETWEEN 1 AND 5
        AND (state = 2) = (outcome IS NOT NULL) AND (state = 1) = (settled_at IS NULL)
    )
) WITH (
    -- Half of each page is left for the completed versions of its rows, so that a completion stays
    -- on its page and touches no index.
    fillfactor = 45,
    -- Every operation is updated once and deleted once: the defaults would let a fifth of the table
    -- rot first.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1,
    -- Giving pages back to the disk takes a lock that claims would wait for.
    vacuum_truncate = false
);

-- No index on anything that a completion changes.

-- For pages of what has not ended. Changes only when an attempt takes over.
CREATE INDEX semel_operation_token ON semel_operation (token);
-- For the sweeper, who alone changes it after the claim.
CREATE INDEX semel_operation_sweep ON semel_operation (sweep_at);
-- For purging by subject. Hashed, because a subject may be longer than a B-tree takes.
CREATE INDEX semel_operation_subject ON semel_operation USING hash (subject) WHERE subject IS NOT NULL;
