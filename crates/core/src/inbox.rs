//! The contract between a consumer of messages and a database that keeps its ledger.
//!
//! Brokers deliver again: after a lost acknowledgement, a restart, a rebalance. A *ledger* row per
//! message, unique on (group, source, id) and written in the same transaction as the effect, makes
//! the second delivery a [`Duplicate`](Received::Duplicate) (G-45). The message is acknowledged after
//! that transaction has committed, never before.
//!
//! What cannot be applied is *set aside* in the database with its reason, and with it every later
//! message of its key, so that order holds and other keys go on. Nothing is dropped: a message without
//! an id and one that reuses an id for something else become dead letters, too.
//!
//! Nothing here reads a broker or runs an effect. Each store has its own way to join a handler's
//! statements with the ledger; see [`Apply`].

mod arrival;
mod order;
mod reach;
mod retention;

use std::time::Duration;

pub use arrival::{
    Arrival, Fence, ID_CHARS_MAX, Id, Ids, Incoming, Nameless, NoId, headers_of, headers_text,
};
pub use order::{Entry, Reached, State, changes_hands, firsts, in_order, judge, vouched};
pub use reach::Reach;
pub use retention::{Horizon, Retention, TooShort};

use crate::clock::Timestamp;
use crate::store::Pending;

/// Most messages applied in one transaction.
pub const BATCH_MAX: usize = 1000;
/// Longest name of a group or a source.
pub const NAME_CHARS_MAX: usize = 200;

/// What the ledger says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Never seen: run the effect, in the same transaction.
    New,
    /// Its effect has committed, or it is set aside: acknowledge, and do nothing.
    Duplicate,
    /// Its id was used before for another payload. Nobody knows which is right: a dead letter.
    Conflict,
    /// Published by a relay that had lost its lane, below what its successor had got applied: kept, not
    /// applied. The successor's own copy of it is new. See [`Reach`].
    Stale,
    /// An earlier message of its key is set aside: it waits behind it.
    Behind,
}

impl Received {
    /// How a message is kept that is neither applied nor known, and why; `None` for the others.
    pub fn aside(self, arrival: &Arrival) -> Option<(Aside, String)> {
        match self {
            Self::New | Self::Duplicate => None,
            Self::Conflict => Some((
                Aside::Dead,
                format!(
                    "the id {} was used before, in {}, for another payload; ask its producer which is right",
                    arrival.id, arrival.message.source
                ),
            )),
            Self::Stale => Some((
                Aside::Stale,
                "a relay published it under a lane it had lost, after its successor had gone further".into(),
            )),
            Self::Behind => Some((Aside::Behind, "an earlier message of its key is set aside".into())),
        }
    }
}

/// How a batch sets aside what it does not apply.
pub fn asides<'a>(batch: &'a Batch, received: &[Received]) -> Vec<SetAside<'a>> {
    let aside = |(arrival, received): (&'a Arrival, &Received)| {
        let (aside, reason) = received.aside(arrival)?;
        Some(SetAside {
            message: &arrival.message,
            id: Some(&arrival.id),
            letter: arrival.letter,
            aside,
            reason,
            tries: arrival.tries,
            again_in: Duration::ZERO,
        })
    };
    batch.arrivals.iter().zip(received).filter_map(aside).collect()
}

/// How far a group has come in one partition of a topic, kept in the effect's transaction (G-47).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The assignment it was read under. A newer one in the database refuses the transaction.
    pub generation: u64,
    /// The first offset of this batch.
    pub first: i64,
    /// Where to go on once it is applied.
    pub next: i64,
}

/// A partition as the database gave it to one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Grows each time the partition changes hands.
    pub generation: u64,
    /// Where to go on; `None` if nothing was ever applied.
    pub next: Option<i64>,
}

/// Messages that are applied together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Who applies them: each group applies every message once.
    pub group: String,
    /// In the order of the source.
    pub arrivals: Vec<Arrival>,
    /// How far this comes, where the source keeps no position of its own.
    pub offsets: Vec<Offset>,
}

/// Why a handler did not apply a message. Its transaction is rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It may work later: the message is set aside and tried again, a bounded number of times.
    #[error("{0}")]
    Later(String),
    /// It never will: a dead letter.
    #[error("{0}")]
    Never(String),
}

impl Failure {
    /// What was said.
    pub fn reason(&self) -> &str {
        match self {
            Self::Later(reason) | Self::Never(reason) => reason,
        }
    }
}

/// What came of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Committed. What each message was, in the order of the batch: the effects of the new ones have
    /// happened, whatever is not [`Received::New`] or [`Received::Duplicate`] is set aside.
    Committed(Vec<Received>),
    /// Nothing was committed, because of one message or, without an index, because of any of them.
    Failed {
        /// Which message, counted in the batch.
        at: Option<usize>,
        /// Why.
        failure: Failure,
    },
    /// Some messages are settled and others failed, each by itself: effects outside the database cannot
    /// be rolled back together. One entry per message.
    Each(Vec<Result<Received, Failure>>),
    /// Somebody else was given the partition: nothing was committed, and nothing that was read may be.
    Fenced,
}

/// Applies messages and their ledger rows.
///
/// Where the effect is in the same database, all of a batch is one transaction: a crash leaves all of it
/// or nothing. Where it is not, it is intent, call and result, and a crash between call and result calls
/// again with the same id.
pub trait Apply: Send + Sync + 'static {
    /// Applies a batch of at most [`BATCH_MAX`]. An error with
    /// [`outcome_is_unknown`](crate::Error::outcome_is_unknown) is resolved by calling it again with the
    /// same batch: the ledger says which messages are duplicates by now.
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied>;
}

/// Why a message is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Aside {
    /// It will be tried again by itself.
    Later = 1,
    /// A dead letter. Its key waits.
    Dead = 2,
    /// It waits for an earlier one of its key.
    Behind = 3,
    /// A dead letter that came too late for its place in the order. Its key does not wait.
    Stale = 4,
}

impl Aside {
    /// Takes back what a store kept.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Later, Self::Dead, Self::Behind, Self::Stale].into_iter().find(|aside| *aside as u8 == byte)
    }
}

/// A message to set aside.
#[derive(Clone, Debug)]
pub struct SetAside<'a> {
    /// The message.
    pub message: &'a Incoming,
    /// Its id, if it has one. A ledger row is written with it, so that it is a duplicate from now on.
    pub id: Option<&'a Id>,
    /// The letter it was read from, which is replaced.
    pub letter: Option<u64>,
    /// Why.
    pub aside: Aside,
    /// For people.
    pub reason: String,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried again, for [`Aside::Later`].
    pub again_in: Duration,
}

/// A message that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its number. Of one key, later messages have larger ones.
    pub number: u64,
    /// Whose.
    pub group: String,
    /// Its id, if it has one.
    pub id: Option<Id>,
    /// The message, whole.
    pub message: Incoming,
    /// Why it is here.
    pub aside: Aside,
    /// What was said last.
    pub reason: String,
    /// How often it was tried.
    pub tries: u32,
    /// Since when.
    pub since: Timestamp,
    /// When it is tried again, if by itself.
    pub again_at: Option<Timestamp>,
}

/// What came of setting messages aside, or of settling calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Committed.
    Kept,
    /// Somebody else was given the partition: nothing was committed.
    Fenced,
}

/// What an operator does with a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Apply it again. One without an id gets this one, which no message of its source may have had before; one that has an
    /// id takes no other.
    Replay(Option<Id>),
    /// Never apply it; those behind it go on.
    Discard,
}

/// What came of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It is done; a consumer does the rest.
    Made,
    /// There is no such letter.
    NotThere,
    /// It has no id and was given none, so it could not be told from its next delivery.
    NoId,
    /// It was given an id and has another of its own. Under a second id its message would be applied a second time when it
    /// is delivered again.
    HasId,
    /// It was given an id the ledger knows, of a message that has come so far: under this id it would be applied a second
    /// time, or in the place of another.
    IdUsed(State),
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Ledger rows deleted.
    pub deleted: u64,
    /// There is more to delete now.
    pub more: bool,
}

/// The state of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Which.
    pub group: String,
    /// Ledger rows, at most as many as were looked at.
    pub ledger: u64,
    /// There are more.
    pub more: bool,
    /// Calls that began and have no result.
    pub open: u64,
    /// To be tried again by themselves.
    pub later: u64,
    /// Dead letters, stale ones among them.
    pub dead: u64,
    /// Waiting behind others.
    pub behind: u64,
    /// The oldest letter.
    pub oldest: Option<Timestamp>,
}

/// A database that keeps ledgers. All of its calls are transactions of their own.
pub trait Inbox: Send + Sync + 'static {
    /// The engine's name, for people and metrics.
    fn engine(&self) -> &'static str;

    /// Writes down that these messages are about to be applied outside the database. `New` also for one
    /// that was written down before and has no result: call again, with the same id. Not for letters, which
    /// are written down already.
    ///
    /// After a crash right after it: the intents are there.
    fn intend<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Vec<Received>>;

    /// Writes the results of calls that were done, and how long each took. A message that had been set aside
    /// leaves its letter now: until here that was its intent.
    ///
    /// After a crash right after it: they are there, and the next delivery is a duplicate.
    fn finish<'a>(&'a self, batch: &'a Batch, took: &'a [Duration]) -> Pending<'a, Kept>;

    /// Sets messages aside, with ledger rows for those that have an id, and moves the offsets. Repeating
    /// it does not add a second letter for the same place in the source. A message that somebody else has
    /// applied since it failed stays applied and gets no letter; the offsets move on.
    fn set_aside<'a>(
        &'a self,
        group: &'a str,
        letters: &'a [SetAside<'a>],
        offsets: &'a [Offset],
    ) -> Pending<'a, Kept>;

    /// Letters to apply now, the first of each key only, at most `limit`.
    fn due<'a>(&'a self, group: &'a str, limit: u32) -> Pending<'a, Vec<Letter>>;

    /// How many letters wait to be tried again by themselves.
    fn waiting<'a>(&'a self, group: &'a str) -> Pending<'a, u64>;

    /// Takes a partition: whoever had it before can commit nothing any more.
    fn assign<'a>(&'a self, group: &'a str, topic: &'a str, partition: i32) -> Pending<'a, Assignment>;

    /// Lets a group read on at offset `to`, in all partitions of a topic or one, because the topic was made anew or lost its
    /// end. What whoever reads it now still wants to commit is refused; it notices with its next batch, and on a quiet partition
    /// not before it is started again. How many partitions that are: only those that somebody has taken before.
    ///
    /// What the ledger knows is a duplicate if it is read again. What it has forgotten (rows are swept, topics may keep
    /// messages longer), or never knew (a group that began at the end, another cluster), is applied. What lies before `to` and
    /// was not applied is never read. Whether `to` is still there is not known here: a reader refuses what was deleted.
    fn rewind<'a>(
        &'a self,
        group: &'a str,
        topic: &'a str,
        partition: Option<i32>,
        to: i64,
    ) -> Pending<'a, u64>;

    /// Deletes ledger rows of messages that were settled longer ago than `kept`, at most `limit`. It never
    /// waits for a consumer, and a consumer never for more than one such step.
    fn sweep<'a>(&'a self, group: &'a str, kept: Duration, limit: u32) -> Pending<'a, Swept>;

    /// Every group that has rows.
    fn overview(&self) -> Pending<'_, Vec<Overview>>;

    /// Letters by number above `after`, at most `limit`; `only` one kind of them.
    fn letters<'a>(
        &'a self,
        group: &'a str,
        only: Option<Aside>,
        after: u64,
        limit: u32,
    ) -> Pending<'a, Vec<Letter>>;

    /// Judges a letter. After a crash right after it: judged, or as before.
    fn judge<'a>(&'a self, group: &'a str, number: u64, verdict: &'a Verdict) -> Pending<'a, Judged>;
}
