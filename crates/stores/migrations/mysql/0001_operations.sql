-- The tables of a Semel store. DDL commits by itself here, so a migrator that dies leaves some of them:
-- each statement can be run again.

-- What was applied, and which builds may use the result. Read before anything else is.
CREATE TABLE IF NOT EXISTS semel_schema (
    version         int          NOT NULL PRIMARY KEY,
    name            varchar(200) NOT NULL,
    checksum        binary(32)   NOT NULL,
    applied_at      bigint       NOT NULL,
    minimum_reader  int          NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row about the store as a whole. Hardly ever written: a row every claim had to touch would
-- put all claims in one queue.
CREATE TABLE IF NOT EXISTS semel_meta (
    one              tinyint      NOT NULL DEFAULT 1 PRIMARY KEY,
    store_id         binary(16)   NOT NULL,
    epoch            bigint       NOT NULL,
    -- Server and database this state was made or acknowledged in. A dump restored elsewhere carries
    -- the old value, and is noticed by it.
    home             varchar(255),
    acknowledged_by  text,
    acknowledged_at  bigint,
    CONSTRAINT semel_meta_one CHECK (one = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The secrets of fingerprints. Old ones stay: records made under them must stay comparable.
CREATE TABLE IF NOT EXISTS semel_hash_key (
    version     int        NOT NULL PRIMARY KEY,
    secret      binary(32) NOT NULL,
    created_at  bigint     NOT NULL
) ENGINE = InnoDB;

-- Tokens. An AUTO_INCREMENT never rolls back and never gives a number twice, which is what a token
-- must not do; gaps do no harm. MySQL has no sequences, and a counter in a row would put all claims in
-- one queue. A row goes in with the claim that uses it, so whoever sees a token sees its row too. Old
-- rows are trimmed by the sweeper; the highest stays.
CREATE TABLE IF NOT EXISTS semel_token (
    n bigint NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;

-- One row per operation. Times are microseconds since 1970 on this server's clock.
CREATE TABLE IF NOT EXISTS semel_operation (
    id           binary(32)       NOT NULL,
    -- 1 in progress, 2 completed, 3 released, 4 unknown, 5 tombstone
    state        tinyint unsigned NOT NULL,
    -- 1 rerun, 2 hold, 3 ask
    recovery     tinyint unsigned NOT NULL,
    attempts     int unsigned     NOT NULL,
    token        bigint           NOT NULL,
    nonce        binary(16)       NOT NULL,
    fp_version   int unsigned     NOT NULL,
    fp_digest    binary(32)       NOT NULL,
    created_at   bigint           NOT NULL,
    attempt_at   bigint           NOT NULL,
    lease_until  bigint           NOT NULL,
    settled_at   bigint,
    sweep_at     bigint           NOT NULL,
    lease_us     bigint           NOT NULL,
    run_max_us   bigint           NOT NULL,
    ttl_us       bigint           NOT NULL,
    window_us    bigint           NOT NULL,
    namespace    varchar(512)     NOT NULL,
    tenant       varchar(512),
    route        varchar(512)     NOT NULL,
    `key`        varchar(512)     NOT NULL,
    subject      mediumtext,
    fp_paths     mediumblob       NOT NULL,
    outcome      longblob,
    history      longblob,
    PRIMARY KEY (id),
    -- No index on anything that a completion changes.
    -- For pages of what has not ended. Changes only when an attempt takes over.
    KEY semel_operation_token (token),
    -- For the sweeper, who alone changes it after the claim.
    KEY semel_operation_sweep (sweep_at),
    -- For purging by subject. Its beginning only, because a subject may be longer than an index takes.
    KEY semel_operation_subject (subject(64)),
    CONSTRAINT semel_operation_shape CHECK (
        state BETWEEN 1 AND 5 AND (state = 2) = (outcome IS NOT NULL) AND (state = 1) = (settled_at IS NULL)
    )
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
