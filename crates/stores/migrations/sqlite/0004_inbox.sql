-- The ledger of consumers: what each group has applied, and what it has set aside. Times and spans are
-- microseconds.

-- One row per message and group, written in the effect's transaction. Its key is what makes a second
-- delivery a duplicate.
CREATE TABLE semel_inbox (
    grp TEXT NOT NULL,
    source TEXT NOT NULL,
    -- The producer's, never the broker's delivery tag.
    id TEXT NOT NULL,
    -- 1 a call began, 2 done, 3 set aside or discarded
    state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 3),
    size INTEGER NOT NULL,
    handled_at INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    -- How long a call outside the database took. Others have it in their batch.
    took INTEGER,
    -- SHA-256 of the payload.
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (grp, source, id)
) STRICT, WITHOUT ROWID;

-- For the sweeper.
CREATE INDEX semel_inbox_sweep ON semel_inbox (grp, handled_at);

-- How long a transaction took, once for all its messages: the time is known only at its end.
CREATE TABLE semel_inbox_batch (
    batch INTEGER PRIMARY KEY AUTOINCREMENT,
    grp TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    took INTEGER NOT NULL,
    messages INTEGER NOT NULL
) STRICT;
CREATE INDEX semel_inbox_batch_sweep ON semel_inbox_batch (grp, began_at);

-- How far the relays of a source had come with a key: the newest holding of the lane and the largest
-- sequence, each by itself. What an older holder publishes below that is stale.
CREATE TABLE semel_inbox_fence (
    grp TEXT NOT NULL,
    source TEXT NOT NULL,
    lane INTEGER NOT NULL,
    key TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (grp, source, lane, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX semel_inbox_fence_sweep ON semel_inbox_fence (grp, seen_at);

-- Where a group goes on in a partition, and which assignment may move it.
CREATE TABLE semel_inbox_offset (
    grp TEXT NOT NULL,
    topic TEXT NOT NULL,
    part INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    next_offset INTEGER,
    PRIMARY KEY (grp, topic, part)
) STRICT, WITHOUT ROWID;

-- Messages set aside, whole. The number keeps the order of a key, and is never used twice.
CREATE TABLE semel_inbox_letter (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    grp TEXT NOT NULL,
    source TEXT NOT NULL,
    -- Where it lies at the source.
    place TEXT NOT NULL,
    id TEXT,
    subject TEXT NOT NULL,
    -- What its order is kept by.
    key TEXT,
    -- The source's own key, if it has one.
    own_key TEXT,
    -- 1 tried again by itself, 2 dead, 3 behind another of its key, 4 stale
    aside INTEGER NOT NULL CHECK (aside BETWEEN 1 AND 4),
    tries INTEGER NOT NULL,
    since INTEGER NOT NULL,
    again_at INTEGER,
    headers TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- SHA-256 of the payload.
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    payload BLOB NOT NULL
) STRICT;

-- A second delivery must not make a second letter. The place alone does not tell: the places of a stream
-- that is made anew begin again, and then another message lies there. No id is empty.
CREATE UNIQUE INDEX semel_inbox_letter_place
ON semel_inbox_letter (grp, source, place, coalesce(id, ''), hash);

-- Is a key parked, and which letter is its first?
CREATE INDEX semel_inbox_letter_parked ON semel_inbox_letter (grp, source, key, number) WHERE aside <> 4;

-- Was a message kept as stale?
CREATE INDEX semel_inbox_letter_stale ON semel_inbox_letter (grp, source, id) WHERE aside = 4;
