-- The ledger of consumers: what each group has applied, and what it has set aside. Each statement can be run again.
--
-- Names and ids are bytes, because text would be compared without the blanks at its end. Times are microseconds
-- since 1970 on this server's clock.

-- One row per message and group, written in the effect's transaction. Its key is what makes a second delivery a
-- duplicate.
CREATE TABLE IF NOT EXISTS semel_inbox (
    grp         varbinary(800)   NOT NULL,
    source      varbinary(800)   NOT NULL,
    -- The producer's, never the broker's delivery tag.
    id          varbinary(1020)  NOT NULL,
    -- 1 a call began, 2 done, 3 set aside or discarded
    state       tinyint unsigned NOT NULL,
    size        int unsigned     NOT NULL,
    -- When it was settled.
    handled_at  bigint           NOT NULL,
    batch       bigint           NOT NULL,
    -- How long a call outside the database took. Others have it in their batch.
    took_us     bigint,
    -- SHA-256 of the payload.
    hash        binary(32)       NOT NULL,
    PRIMARY KEY (grp, source, id),
    -- For the sweeper.
    KEY semel_inbox_sweep (grp, handled_at),
    CONSTRAINT semel_inbox_shape CHECK (state BETWEEN 1 AND 3)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- How long a transaction took, once for all its messages. Its row is also how a transaction knows that it is still
-- the one that received them: MySQL may have rolled that back and gone on.
CREATE TABLE IF NOT EXISTS semel_inbox_batch (
    batch     bigint         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    grp       varbinary(800) NOT NULL,
    began_at  bigint         NOT NULL,
    -- Both are null until the end.
    took_us   bigint,
    messages  int unsigned,
    KEY semel_inbox_batch_sweep (grp, began_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- How far the relays of a source had come with a key: the newest holding of the lane and the largest sequence, each
-- by itself. What an older holder publishes below that is stale.
CREATE TABLE IF NOT EXISTS semel_inbox_fence (
    grp       varbinary(800) NOT NULL,
    source    varbinary(800) NOT NULL,
    lane      bigint         NOT NULL,
    `key`     varbinary(512) NOT NULL,
    epoch     bigint         NOT NULL,
    sequence  bigint         NOT NULL,
    seen_at   bigint         NOT NULL,
    PRIMARY KEY (grp, source, lane, `key`),
    KEY semel_inbox_fence_sweep (grp, seen_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Where a group goes on in a partition, and which assignment may move it.
CREATE TABLE IF NOT EXISTS semel_inbox_offset (
    grp          varbinary(800)  NOT NULL,
    topic        varbinary(1000) NOT NULL,
    part         int             NOT NULL,
    generation   bigint          NOT NULL,
    next_offset  bigint,
    -- Counts, so that a move to where it was is one, too.
    moves        bigint          NOT NULL,
    PRIMARY KEY (grp, topic, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Messages set aside, whole. The number keeps the order of a key.
CREATE TABLE IF NOT EXISTS semel_inbox_letter (
    number    bigint           NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- SHA-256 of group, source, place, id and payload's hash. A second delivery must not make a second letter. The
    -- place alone does not tell: the places of a stream that is made anew begin again.
    same      binary(32)       NOT NULL,
    since     bigint           NOT NULL,
    again_at  bigint,
    tries     int unsigned     NOT NULL,
    -- 1 tried again by itself, 2 dead, 3 behind another of its key, 4 stale
    aside     tinyint unsigned NOT NULL,
    grp       varbinary(800)   NOT NULL,
    source    varbinary(800)   NOT NULL,
    -- Where it lies at the source.
    place     blob             NOT NULL,
    id        varbinary(1020),
    subject   blob             NOT NULL,
    -- What its order is kept by.
    `key`     varbinary(512),
    -- The source's own key, if it has one.
    own_key   mediumblob,
    headers   mediumblob       NOT NULL,
    reason    blob             NOT NULL,
    -- SHA-256 of the payload.
    hash      binary(32)       NOT NULL,
    payload   longblob         NOT NULL,
    UNIQUE KEY semel_inbox_letter_same (same),
    -- Is a key parked, and which letter is its first?
    KEY semel_inbox_letter_parked (grp, source, `key`, number),
    -- Was a message kept as stale?
    KEY semel_inbox_letter_id (grp, source, id),
    CONSTRAINT semel_inbox_letter_shape CHECK (aside BETWEEN 1 AND 4)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
