-- One row: how many lanes messages are spread over, and the number of the last holding of any lane. The
-- counter lives here and not in the lanes, because it must grow even if lanes are made anew.
CREATE TABLE semel_outbox_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    lanes INTEGER NOT NULL CHECK (lanes BETWEEN 1 AND 256),
    epoch INTEGER NOT NULL
) STRICT;

INSERT INTO semel_outbox_meta (one, lanes, epoch) VALUES (1, 1, 0);

-- Who holds a lane, and how far it has come. Every message of the lane up to floor is settled.
CREATE TABLE semel_outbox_lane (
    lane INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    holder BLOB,
    lease_until INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    -- Counts saves, so that one whose answer was lost is recognised when it is repeated.
    saves INTEGER NOT NULL
) STRICT;

INSERT INTO semel_outbox_lane (lane, epoch, holder, lease_until, floor, saves) VALUES (0, 0, NULL, 0, 0, 0);

-- What waits to be published. AUTOINCREMENT, because a number must never come again: a lane that has come
-- to a number looks only above it. SQLite has one writer at a time, so the order of numbers is the order of
-- commits. No index: rows are read from the floor on and deleted from the front, and every index would be
-- written twice per message.
--
-- Times are microseconds; headers are lines of `name:value`.
CREATE TABLE semel_outbox (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL CHECK (length(id) = 16),
    lane INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    content_type TEXT NOT NULL,
    correlation TEXT,
    causation TEXT,
    trace_parent TEXT,
    deliver_after INTEGER,
    payload BLOB NOT NULL
) STRICT;

-- What is not to be published before its time. It gets its number and its place when that has come.
CREATE TABLE semel_outbox_delayed (
    entry INTEGER PRIMARY KEY,
    id BLOB NOT NULL CHECK (length(id) = 16),
    lane INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    content_type TEXT NOT NULL,
    correlation TEXT,
    causation TEXT,
    trace_parent TEXT,
    deliver_after INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;

CREATE INDEX semel_outbox_delayed_due ON semel_outbox_delayed (deliver_after);
CREATE INDEX semel_outbox_delayed_id ON semel_outbox_delayed (id);

-- What was set aside, under the number it had. Few, so it may have indexes.
CREATE TABLE semel_outbox_aside (
    sequence INTEGER PRIMARY KEY,
    id BLOB NOT NULL CHECK (length(id) = 16),
    lane INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    content_type TEXT NOT NULL,
    correlation TEXT,
    causation TEXT,
    trace_parent TEXT,
    deliver_after INTEGER,
    -- 1: to be tried again at again_at; 2: dead; 3: behind an earlier one of its key.
    aside INTEGER NOT NULL CHECK (aside IN (1, 2, 3)),
    tries INTEGER NOT NULL,
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    again_at INTEGER,
    payload BLOB NOT NULL
) STRICT;

CREATE INDEX semel_outbox_aside_id ON semel_outbox_aside (id);
CREATE INDEX semel_outbox_aside_key ON semel_outbox_aside (key, sequence) WHERE key IS NOT NULL;
CREATE INDEX semel_outbox_aside_again ON semel_outbox_aside (lane, again_at) WHERE key IS NULL AND aside = 1;

-- Keys with something set aside, and when the first of it may go. Without this, every look for what is due
-- would walk through all that waits behind.
CREATE TABLE semel_outbox_parked (
    key TEXT PRIMARY KEY,
    lane INTEGER NOT NULL,
    -- NULL: not by itself, the first is dead.
    ready_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_outbox_parked_ready ON semel_outbox_parked (lane, ready_at) WHERE ready_at IS NOT NULL;

-- Who took a restored outbox as it is, and when.
CREATE TABLE semel_outbox_rebase (
    epoch INTEGER PRIMARY KEY,
    rebased_at INTEGER NOT NULL,
    rebased_by TEXT NOT NULL
) STRICT;
