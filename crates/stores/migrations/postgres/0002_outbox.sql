-- The outbox: messages written in the caller's own transaction, and what relays remember of them.
-- Times are microseconds since 1970 on this server's clock.

-- How many lanes there are. A function, because the lane of a message is a generated column, and such a
-- column may ask a function but not a table. It changes only while the outbox holds nothing, hence
-- IMMUTABLE. (Dumps carry it, and a restore computes the lanes anew.)
CREATE FUNCTION semel_outbox_lanes() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 4';

-- Numbers of messages. CACHE 1, because numbers cached in sessions come out of order: a writer that
-- waited for another's row lock must get a larger one.
CREATE SEQUENCE semel_outbox_sequence AS bigint MINVALUE 1 CACHE 1 NO CYCLE;

-- Messages. Only ever inserted: who has read what is kept elsewhere, so there is nothing to vacuum, and
-- a snapshot that somebody holds open costs nothing.
--
-- Writers insert from `id` on and leave the rest to the defaults. Whoever wants messages of one key in
-- order inserts while holding the key's lock (a row of their own that every writer of that key updates).
CREATE TABLE semel_outbox (
    sequence       bigint   NOT NULL DEFAULT nextval('semel_outbox_sequence'),
    -- The transaction, not the savepoint: readers compare it with snapshots, which know transactions.
    xid            xid8     NOT NULL DEFAULT pg_current_xact_id(),
    at             bigint   NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    lane           smallint NOT NULL GENERATED ALWAYS AS (((
        CASE WHEN key IS NULL THEN uuid_hash_extended(id, 0) ELSE hashtextextended(key, 0) END
        & 9223372036854775807) % semel_outbox_lanes())::smallint) STORED,
    id             uuid     NOT NULL,
    topic          text     NOT NULL,
    key            text     COLLATE "C",
    -- Lines of `name: value`, each ended by a line feed.
    headers        text     NOT NULL DEFAULT '',
    content_type   text     NOT NULL DEFAULT 'application/json',
    payload        bytea    NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text,
    deliver_after  bigint
) PARTITION BY LIST (((sequence >> 20) & 7));

-- A ring: a million numbers to each part, then the next. A part is emptied by TRUNCATE once everything in
-- it is settled; dropping it instead would lock the parent, and with it every writer. Writers who come
-- round to a part that is not empty yet just add to it: readers go by transaction and by number, never by
-- part, so old and new rows in one part cannot be mistaken for each other. They only stay longer.
CREATE TABLE semel_outbox_0 PARTITION OF semel_outbox FOR VALUES IN (0) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_1 PARTITION OF semel_outbox FOR VALUES IN (1) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_2 PARTITION OF semel_outbox FOR VALUES IN (2) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_3 PARTITION OF semel_outbox FOR VALUES IN (3) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_4 PARTITION OF semel_outbox FOR VALUES IN (4) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_5 PARTITION OF semel_outbox FOR VALUES IN (5) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_6 PARTITION OF semel_outbox FOR VALUES IN (6) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE semel_outbox_7 PARTITION OF semel_outbox FOR VALUES IN (7) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);

-- For what committed since a snapshot.
CREATE INDEX semel_outbox_new ON semel_outbox (lane, xid, sequence);
-- For walking through a batch too large to be read at once. The number comes first, so that nobody
-- who looks for new transactions of a lane can be tempted to use it: these tables have no statistics.
CREATE INDEX semel_outbox_walk ON semel_outbox (sequence, lane);

-- One row about the outbox as a whole.
CREATE TABLE semel_outbox_setting (
    one        boolean  PRIMARY KEY DEFAULT true CHECK (one),
    -- Which half of the log is written to.
    half       smallint NOT NULL DEFAULT 0 CHECK (half IN (0, 1)),
    -- How large a half may grow before the other one is begun.
    log_bytes  bigint   NOT NULL DEFAULT 8388608 CHECK (log_bytes > 0)
);
INSERT INTO semel_outbox_setting DEFAULT VALUES;

-- How far each lane was published, and who holds it: a log. Of a lane only the row with the largest step
-- counts. Nothing is updated, because a row that is updated hundreds of times a second grows a chain of
-- dead versions as soon as anybody keeps an old snapshot open.
--
-- Steps of a lane are appended under an advisory lock on the lane, each only after the step its writer
-- knew as the newest: that is the fence. There are two halves, so that the older one can be truncated.
CREATE TABLE semel_outbox_cursor (
    step         bigint      NOT NULL,
    -- Compared with the row's own transaction: they differ in what was loaded from a dump.
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- Grows whenever the lane changes hands.
    epoch        bigint      NOT NULL,
    -- Grows whenever something is settled.
    progress     bigint      NOT NULL,
    lease_until  bigint      NOT NULL,
    -- In a batch: settled up to this number, and the largest there is.
    last         bigint      NOT NULL,
    until        bigint      NOT NULL,
    lane         smallint    NOT NULL,
    half         smallint    NOT NULL,
    holder       bytea,
    -- Cluster and database; NULL where the server does not tell.
    home         text,
    -- Whatever is visible in it is settled.
    snapshot     pg_snapshot NOT NULL,
    -- What is visible in this one and not in the other is being worked through, by number.
    batch        pg_snapshot,
    CONSTRAINT semel_outbox_cursor_step PRIMARY KEY (lane, step, half)
) PARTITION BY LIST (half);
CREATE TABLE semel_outbox_cursor_0 PARTITION OF semel_outbox_cursor FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE semel_outbox_cursor_1 PARTITION OF semel_outbox_cursor FOR VALUES IN (1) WITH (autovacuum_enabled = off);

-- Messages that were set aside, whole: their rows above count as settled, and go.
CREATE TABLE semel_outbox_aside (
    sequence       bigint   PRIMARY KEY,
    at             bigint   NOT NULL,
    since          bigint   NOT NULL,
    -- Of state 1 only.
    again_at       bigint,
    tries          integer  NOT NULL,
    -- 1 tried again by itself, 2 dead, 3 behind an earlier one of its key. The first of a key is never 3.
    state          smallint NOT NULL CHECK (state BETWEEN 1 AND 3 AND (state = 1) = (again_at IS NOT NULL)),
    lane           smallint NOT NULL GENERATED ALWAYS AS (((
        CASE WHEN key IS NULL THEN uuid_hash_extended(id, 0) ELSE hashtextextended(key, 0) END
        & 9223372036854775807) % semel_outbox_lanes())::smallint) STORED,
    reason         text     NOT NULL,
    id             uuid     NOT NULL,
    topic          text     NOT NULL,
    key            text     COLLATE "C",
    headers        text     NOT NULL,
    content_type   text     NOT NULL,
    payload        bytea    NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text,
    deliver_after  bigint
);
-- Whether a key has anything here, and what is the first.
CREATE INDEX semel_outbox_aside_key ON semel_outbox_aside (lane, key, sequence);
-- What is due.
CREATE INDEX semel_outbox_aside_due ON semel_outbox_aside (lane, again_at) WHERE state = 1;
CREATE INDEX semel_outbox_aside_id ON semel_outbox_aside (id);

-- Messages whose time has not come. Then they get a number, and with it a place among the others.
CREATE TABLE semel_outbox_delayed (
    number         bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deliver_after  bigint   NOT NULL,
    id             uuid     NOT NULL,
    topic          text     NOT NULL,
    key            text     COLLATE "C",
    headers        text     NOT NULL DEFAULT '',
    content_type   text     NOT NULL DEFAULT 'application/json',
    payload        bytea    NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text
);
CREATE INDEX semel_outbox_delayed_due ON semel_outbox_delayed (deliver_after, number);
CREATE INDEX semel_outbox_delayed_id ON semel_outbox_delayed (id);
