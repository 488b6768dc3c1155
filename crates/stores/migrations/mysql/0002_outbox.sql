-- The outbox: messages that committed and are to be published. Each statement can be run again.
--
-- The rows that are there are the state: a row is removed when its message has been published, and whoever
-- commits late is found because its rows are there. Times are microseconds since 1970 on this server's
-- clock; headers are lines of `name:value`.

-- One row. The epoch is counted here and not in the lanes, because it must grow whatever becomes of them.
CREATE TABLE IF NOT EXISTS semel_outbox_meta (
    one         tinyint      NOT NULL DEFAULT 1 PRIMARY KEY,
    lanes       smallint     NOT NULL,
    epoch       bigint       NOT NULL,
    -- Server and database it was last published from. A dump restored elsewhere carries the old value.
    home        varchar(255),
    rebased_by  text,
    rebased_at  bigint,
    CONSTRAINT semel_outbox_meta_one CHECK (one = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO semel_outbox_meta (one, lanes, epoch) VALUES (1, 8, 0);

-- Who holds a lane. Whoever changes anything of a lane but its writers locks its row first.
CREATE TABLE IF NOT EXISTS semel_outbox_lane (
    lane         smallint NOT NULL PRIMARY KEY,
    epoch        bigint   NOT NULL,
    holder       binary(16),
    lease_until  bigint   NOT NULL,
    -- Counts saves, so that one whose answer was lost is recognised when it is repeated.
    saves        bigint   NOT NULL,
    -- The highest number ever settled: how far the lane has come, for noticing that it was set back.
    settled      bigint   NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO semel_outbox_lane (lane, epoch, holder, lease_until, saves, settled) VALUES
    (0, 0, NULL, 0, 0, 0), (1, 0, NULL, 0, 0, 0), (2, 0, NULL, 0, 0, 0), (3, 0, NULL, 0, 0, 0),
    (4, 0, NULL, 0, 0, 0), (5, 0, NULL, 0, 0, 0), (6, 0, NULL, 0, 0, 0), (7, 0, NULL, 0, 0, 0);

-- What waits. By lane, so that a lane is read in one go; the second index is what AUTO_INCREMENT needs.
-- The lane is CRC32 of the key, or of the id where there is no key, modulo the number of lanes.
CREATE TABLE IF NOT EXISTS semel_outbox (
    sequence       bigint         NOT NULL AUTO_INCREMENT,
    lane           smallint       NOT NULL,
    id             binary(16)     NOT NULL,
    written_at     bigint         NOT NULL,
    topic          varchar(249)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Bytes, because text would be compared without the blanks at its end.
    `key`          varbinary(512),
    headers        mediumtext     NOT NULL,
    content_type   text           NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text,
    deliver_after  bigint,
    payload        longblob       NOT NULL,
    PRIMARY KEY (lane, sequence),
    KEY semel_outbox_sequence (sequence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What is not to be published before its time. It gets its number and its place when that has come.
CREATE TABLE IF NOT EXISTS semel_outbox_delayed (
    entry          bigint         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    lane           smallint       NOT NULL,
    id             binary(16)     NOT NULL,
    written_at     bigint         NOT NULL,
    topic          varchar(249)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key`          varbinary(512),
    headers        mediumtext     NOT NULL,
    content_type   text           NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text,
    deliver_after  bigint         NOT NULL,
    payload        longblob       NOT NULL,
    KEY semel_outbox_delayed_due (deliver_after, entry),
    KEY semel_outbox_delayed_id (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What was set aside, under the number it had.
CREATE TABLE IF NOT EXISTS semel_outbox_aside (
    sequence       bigint           NOT NULL PRIMARY KEY,
    lane           smallint         NOT NULL,
    id             binary(16)       NOT NULL,
    written_at     bigint           NOT NULL,
    topic          varchar(249)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key`          varbinary(512),
    headers        mediumtext       NOT NULL,
    content_type   text             NOT NULL,
    correlation    text,
    causation      text,
    trace_parent   text,
    deliver_after  bigint,
    payload        longblob         NOT NULL,
    -- 1: to be tried again at again_at; 2: dead; 3: behind an earlier one of its key
    aside          tinyint unsigned NOT NULL,
    tries          int unsigned     NOT NULL,
    reason         text             NOT NULL,
    since          bigint           NOT NULL,
    again_at       bigint,
    -- When one that holds nobody up may go.
    alone_at       bigint AS (IF(`key` IS NULL AND aside = 1, again_at, NULL)) STORED,
    KEY semel_outbox_aside_id (id),
    KEY semel_outbox_aside_key (lane, `key`, sequence),
    KEY semel_outbox_aside_alone (lane, alone_at, sequence)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Keys with something set aside, and when the first of it may go. Without this, every look for what is due
-- would walk through all that waits behind.
CREATE TABLE IF NOT EXISTS semel_outbox_parked (
    `key`     varbinary(512) NOT NULL PRIMARY KEY,
    lane      smallint       NOT NULL,
    -- NULL: not by itself, the first is dead.
    ready_at  bigint,
    KEY semel_outbox_parked_ready (lane, ready_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
