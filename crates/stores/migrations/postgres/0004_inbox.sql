-- The ledger of consumers: what each group has applied, and what it has set aside.

-- One row per message and group, written in the effect's transaction. Its unique key is what makes a
-- second delivery a duplicate. Never updated on the plain path, so that it leaves no dead rows.
CREATE TABLE semel_inbox (
    -- When it was settled; microseconds since 1970 on this server's clock.
    handled_at  bigint   NOT NULL,
    batch       bigint   NOT NULL,
    -- How long a call outside the database took. Others have it in their batch.
    took_us     bigint,
    size        integer  NOT NULL,
    -- 1 a call began, 2 done, 3 set aside or discarded
    state       smallint NOT NULL,
    grp         text     NOT NULL,
    source      text     NOT NULL,
    -- The producer's, never the broker's delivery tag.
    id          text     NOT NULL,
    -- SHA-256 of the payload.
    hash        bytea    NOT NULL,
    CONSTRAINT semel_inbox_key PRIMARY KEY (grp, source, id),
    CONSTRAINT semel_inbox_shape CHECK (state BETWEEN 1 AND 3 AND octet_length(hash) = 32)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    -- Giving pages back to the disk takes a lock that consumers would wait for.
    vacuum_truncate = false
);

-- For the sweeper.
CREATE INDEX semel_inbox_sweep ON semel_inbox (grp, handled_at);

-- How long a transaction took, once for all its messages: the time is known only at its end, and
-- writing it into each row would write each row twice.
CREATE SEQUENCE semel_inbox_batch_number AS bigint MINVALUE 1 CACHE 1 NO CYCLE;
CREATE TABLE semel_inbox_batch (
    batch     bigint  PRIMARY KEY,
    began_at  bigint  NOT NULL,
    took_us   bigint  NOT NULL,
    messages  integer NOT NULL,
    grp       text    NOT NULL
);
CREATE INDEX semel_inbox_batch_sweep ON semel_inbox_batch (grp, began_at);

-- How far the relays of a source had come with a key: the newest holding of the lane and the largest
-- sequence, each by itself. What an older holder publishes below that is stale.
CREATE TABLE semel_inbox_fence (
    epoch     bigint   NOT NULL,
    sequence  bigint   NOT NULL,
    seen_at   bigint   NOT NULL,
    lane      bigint   NOT NULL,
    grp       text     NOT NULL,
    source    text     NOT NULL,
    key       text     NOT NULL,
    CONSTRAINT semel_inbox_fence_key PRIMARY KEY (grp, source, lane, key)
) WITH (fillfactor = 70);
CREATE INDEX semel_inbox_fence_sweep ON semel_inbox_fence (grp, seen_at);

-- Where a group goes on in a partition, and which assignment may move it.
CREATE TABLE semel_inbox_offset (
    generation  bigint  NOT NULL,
    next_offset bigint,
    part        integer NOT NULL,
    grp         text    NOT NULL,
    topic       text    NOT NULL,
    CONSTRAINT semel_inbox_offset_key PRIMARY KEY (grp, topic, part)
) WITH (fillfactor = 20);

-- Messages set aside, whole. The number keeps the order of a key.
CREATE TABLE semel_inbox_letter (
    number    bigint   GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    since     bigint   NOT NULL,
    again_at  bigint,
    tries     integer  NOT NULL,
    -- 1 tried again by itself, 2 dead, 3 behind another of its key, 4 stale
    aside     smallint NOT NULL CHECK (aside BETWEEN 1 AND 4),
    grp       text     NOT NULL,
    source    text     NOT NULL,
    -- Where it lies at the source.
    place     text     NOT NULL,
    id        text,
    subject   text     NOT NULL,
    -- What its order is kept by.
    key       text,
    -- The source's own key, if it has one.
    own_key   text,
    headers   text     NOT NULL,
    reason    text     NOT NULL,
    -- SHA-256 of the payload.
    hash      bytea    NOT NULL CHECK (octet_length(hash) = 32),
    payload   bytea    NOT NULL
);

-- A second delivery must not make a second letter. The place alone does not tell: the places of a stream
-- that is made anew begin again, and then another message lies there. No id is empty.
CREATE UNIQUE INDEX semel_inbox_letter_place
ON semel_inbox_letter (grp, source, place, coalesce(id, ''), hash);

-- Is a key parked, and which letter is its first?
CREATE INDEX semel_inbox_letter_parked ON semel_inbox_letter (grp, source, key, number) WHERE aside <> 4;

-- Was a message kept as stale?
CREATE INDEX semel_inbox_letter_stale ON semel_inbox_letter (grp, source, id) WHERE aside = 4;
