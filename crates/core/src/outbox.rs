//! The contract between the relay and a database that keeps an outbox.
//!
//! A message is written in the caller's own transaction (each store has its own way to join one) and
//! is published if, and only if, that commits. This module is the other side: a relay takes a *lane*,
//! reads what has committed, publishes it, and saves how far it came.
//!
//! Messages of one ordering key are all in one lane, and a lane has one holder at a time, by a lease
//! with an epoch. The lease does not stop its holder: what stops a stale one is that its next save
//! finds a newer epoch and changes nothing.
//!
//! What the relay promises is at-least-once, with the same id each time: a crash between publishing and
//! saving publishes again. A message that cannot be published is *set aside* and with it every later one
//! of its key, so that order holds; other keys go on.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::lease::Nonce;
use crate::message::{Message, MessageId, Topic};
use crate::store::Pending;
pub use memory::{MemoryBackup, MemoryOutbox};

/// Most messages read at once.
pub const BATCH_MAX: usize = 5000;
/// Most lanes an outbox can have.
pub const LANES_MAX: u16 = 256;
/// Longest error kept with a message that was set aside.
pub const REASON_BYTES_MAX: usize = 4096;

/// Most bytes of payloads written at once.
pub const TOGETHER_BYTES_MAX: usize = 256 << 20;

/// A part of an outbox with a reader of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u16);

/// What an outbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The engine's name, for people and metrics.
    pub engine: &'static str,
    /// Made at random when the store was created. Sinks that fence use it in their names.
    pub store_id: [u8; 16],
    /// How many lanes there are, from 0.
    pub lanes: u16,
}

/// The holding of a lane, for sinks that fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Which lane.
    pub lane: Lane,
    /// Grows each time the lane changes hands.
    pub epoch: u64,
}

/// What came of asking for a lane.
pub enum Taken {
    /// The caller holds it.
    Yours(Box<dyn Cursor>),
    /// Somebody else does.
    Held {
        /// Until then unless renewed, on the store's clock.
        until: Timestamp,
        /// How long that is from now.
        wait: Duration,
    },
    /// The database was restored or moved, and what was published is no longer certain. An operator
    /// must rebase.
    Stopped {
        /// What was found, for people.
        why: String,
    },
}

/// A message as the outbox holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the database. For one key, later messages have larger ones.
    pub sequence: u64,
    /// The message. [`Message::deliver_after`] has passed. Shared, because a cursor keeps what it gave until that is settled.
    pub message: Arc<Message>,
    /// How often publishing it was tried before, by anybody who could write it down.
    pub tries: u32,
    /// An earlier message of its key is set aside: it must not be published, only settled as
    /// [`Settled::Behind`].
    pub behind: bool,
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The sink has it.
    Sent,
    /// Not now: set aside and read again after `again_in`. Its key waits with it.
    Later {
        /// Why, for people.
        reason: String,
        /// How long to wait.
        again_in: Duration,
    },
    /// Never by itself: a dead letter until an operator replays or discards it. Its key waits with it.
    Dead {
        /// Why, for people.
        reason: String,
    },
    /// Set aside because an earlier message of its key is.
    Behind,
}

/// What came of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// It is saved, and the lease renewed.
    Kept,
    /// Somebody else holds the lane. Nothing was changed; drop the cursor and everything read with it.
    Fenced,
}

/// How far a cursor will have come once something is saved, for a sink that stores it in the same
/// transaction as the messages. Opaque; only the cursor of the same outbox reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(pub Bytes);

/// A held lane. Dropping it gives nothing back: the lease lapses.
pub trait Cursor: Send {
    /// Which lane, and which holding of it.
    fn term(&self) -> Term;

    /// The next entries to settle, at most `limit` and [`BATCH_MAX`], in an order that keeps each key's.
    /// Empty if there are none now. Entries that were set aside and are due come among them, never before
    /// an earlier one of their key.
    ///
    /// After a crash right after it: nothing has changed but, in some databases, a note of what this
    /// batch holds. Called again without a save, it begins with the same entries.
    fn next(&mut self, limit: usize) -> Pending<'_, Vec<Entry>>;

    /// Settles the first `settled.len()` entries of the last [`next`](Cursor::next) and renews the lease.
    /// An empty slice only renews.
    ///
    /// After a crash right after it: all of them are settled, or none is, and they will be read again.
    /// Repeating it after an error is harmless.
    fn save<'a>(&'a mut self, settled: &'a [Settled]) -> Pending<'a, Saved>;

    /// Where the cursor will be once the first `count` entries of the last batch are sent.
    fn position(&self, count: usize) -> Position;

    /// Takes over what a sink says has landed: whatever `position` covers is settled as sent. One that is
    /// not ahead of what was saved changes nothing.
    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved>;

    /// Gives the lane back at once. After a crash right after it: free, or lapsing.
    fn give_back(self: Box<Self>) -> Pending<'static, ()>;
}

/// What [`Outbox::tend`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    /// Delayed messages whose time had come.
    pub due: u64,
    /// Settled messages removed for good.
    pub removed: u64,
    /// There is more to do now.
    pub more: bool,
}

/// Why a message is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Aside {
    /// It will be tried again by itself.
    Later = 1,
    /// A dead letter.
    Dead = 2,
    /// It waits for an earlier one of its key.
    Behind = 3,
}

impl Aside {
    /// Takes back what a store kept.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Later, Self::Dead, Self::Behind].into_iter().find(|aside| *aside as u8 == byte)
    }
}

/// A message that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its lane.
    pub lane: Lane,
    /// As the outbox held it.
    pub entry: Entry,
    /// Why it is here.
    pub aside: Aside,
    /// What the sink said last.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// When it is tried again, if by itself.
    pub again_at: Option<Timestamp>,
}

/// The state of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// Which.
    pub lane: Lane,
    /// How often it changed hands.
    pub epoch: u64,
    /// Who holds it, if anybody does.
    pub holder: Option<Nonce>,
    /// Until when.
    pub lease_until: Option<Timestamp>,
}

/// What waits in one lane for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Where it goes.
    pub topic: Topic,
    /// Which lane.
    pub lane: Lane,
    /// Messages not yet published.
    pub waiting: u64,
    /// Age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Set aside, to be tried again by themselves or waiting for another.
    pub aside: u64,
    /// Dead letters.
    pub dead: u64,
}

/// The state of an outbox. Counting looks at no more than a bounded number of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Every lane.
    pub lanes: Vec<LaneStatus>,
    /// What waits, by topic and lane.
    pub backlog: Vec<Backlog>,
    /// Messages whose time has not come.
    pub delayed: u64,
    /// The counts are at least this; there is more than was looked at.
    pub more: bool,
    /// Why nothing is published: the database was restored or moved.
    pub stopped: Option<String>,
}

/// Where a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the outbox. It may have been published already and not been removed yet.
    Waiting(Lane, Entry),
    /// Set aside.
    Aside(Letter),
    /// Not yet due.
    Delayed(Message),
}

/// What an operator does with dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Publish it again, as it is and under its id.
    Replay,
    /// Publish this in its place and order. It must have an id of its own.
    Edit(Box<Message>),
    /// Never publish it; those behind it go on.
    Discard,
}

/// What came of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It is done; a relay does the rest.
    Made,
    /// There is no such dead letter.
    NotDead,
}

/// A database that keeps an outbox.
pub trait Outbox: Send + Sync + 'static {
    /// What it is. Constant for the life of the store.
    fn facts(&self) -> Facts;

    /// Asks for a lane. After a crash right after it: held until the lease lapses, or not at all.
    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken>;

    /// A bounded step of housekeeping: due messages are moved into their lanes, settled ones removed.
    /// Anybody may do it at any time; it never makes a writer wait for long.
    fn tend(&self) -> Pending<'_, Tended>;

    /// The state of everything.
    fn overview(&self) -> Pending<'_, Overview>;

    /// Entries not yet published, by sequence above `after`, at most `limit`.
    fn list(&self, topic: Option<&Topic>, after: u64, limit: u32) -> Pending<'_, Vec<(Lane, Entry)>>;

    /// Letters set aside, by sequence above `after`, at most `limit`; `only` one kind of them.
    fn aside(&self, only: Option<Aside>, after: u64, limit: u32) -> Pending<'_, Vec<Letter>>;

    /// Where a message is; `None` if the outbox does not hold it: published and removed, or never there.
    fn find(&self, id: MessageId) -> Pending<'_, Option<Found>>;

    /// Judges a dead letter. After a crash right after it: judged, or dead as before.
    fn judge<'a>(&'a self, id: MessageId, verdict: &'a Verdict) -> Pending<'a, Judged>;

    /// After a restore: takes the database as it is now, and publishes again what is not known to have
    /// been published. Returns how many messages that may be. Duplicates, never losses.
    fn rebase<'a>(&'a self, by: &'a str) -> Pending<'a, u64>;
}

/// The lane of a message: by its key, or, where there is none, by its id. For stores that do not compute
/// it in the database.
pub fn lane_of(message: &Message, lanes: u16) -> Lane {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher13::new();
    match &message.key {
        Some(key) => hasher.write(key.as_bytes()),
        None => hasher.write(message.id.as_bytes()),
    }
    Lane((hasher.finish() % u64::from(lanes.max(1))) as u16)
}

/// Shortens a reason to what is kept, on a character's boundary.
pub fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// Refuses messages that could not be published later, before anything is written.
pub fn check(messages: &[Message]) -> Result<(), Error> {
    let together: usize = messages.iter().map(|message| message.payload.len()).sum();
    if together > TOGETHER_BYTES_MAX {
        let text = format!(
            "{} messages have {together} bytes, and {TOGETHER_BYTES_MAX} can be written at once: write them in parts",
            messages.len()
        );
        return Err(Error::new(crate::error::Kind::Misconfigured, text));
    }
    for message in messages {
        message.check().map_err(|invalid| {
            let text = format!("message {} for {} cannot be written: {invalid}", message.id, message.topic);
            Error::new(crate::error::Kind::Misconfigured, text).because(invalid)
        })?;
    }
    Ok(())
}
