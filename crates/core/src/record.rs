//! One operation as a store keeps it, and the only functions that may change it.
//!
//! Every verb of a store is a value that *decides*: given the record that is there and the store's
//! time, it says what the caller is told and what is written instead. Nothing here touches a
//! database; stores fetch, decide, and write inside one atomic step. A transition that is not in
//! this file does not exist.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::fingerprint::{Paths, Print};
use crate::history::{Event, History, Kind};
use crate::lease::{Holder, Nonce, Token};
use crate::{Operation, OperationId, mutant};

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// An attempt holds, or held and let lapse, the lease.
    InProgress = 1,
    /// It happened; the outcome is stored and never changes.
    Completed = 2,
    /// It certainly did not happen; the next attempt may run.
    Released = 3,
    /// It may or may not have happened. Never expires; somebody must find out.
    Unknown = 4,
    /// It ended, and its body was purged. Remembers that the key was used.
    Tombstone = 5,
}

impl State {
    /// Takes back what a store kept.
    pub fn from_byte(byte: u8) -> Option<Self> {
        use State::*;
        [InProgress, Completed, Released, Unknown, Tombstone].into_iter().find(|state| *state as u8 == byte)
    }

    fn has_ended(self) -> bool {
        let forgotten = mutant::on("unknown-expires") && self == Self::Unknown;
        matches!(self, Self::Completed | Self::Released | Self::Tombstone) || forgotten
    }
}

/// What becomes of an operation whose lease lapsed with no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Recovery {
    /// The next attempt runs again. Right only where running twice does no harm: effects in the
    /// store's own transaction, natural idempotency, or a downstream that deduplicates the same key.
    Rerun = 1,
    /// It is unknown until somebody settles it.
    Hold = 2,
    /// It is unknown, and the recoverer asks whoever would know.
    Ask = 3,
}

impl Recovery {
    /// Takes back what a store kept.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Rerun, Self::Hold, Self::Ask].into_iter().find(|recovery| *recovery as u8 == byte)
    }
}

/// The terms under which an attempt was claimed, kept with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What happens when the lease lapses with no outcome.
    pub recovery: Recovery,
    /// How long a lease lasts without renewal.
    pub lease: Duration,
    /// The longest the effect can still be on its way after the claim; nobody is asked before.
    pub run_max: Duration,
    /// How long the record is kept, from its creation.
    pub ttl: Duration,
    /// How long it is kept at least, from its end.
    pub retry_window: Duration,
}

/// One operation, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its identity and readable parts.
    pub operation: Arc<Operation>,
    /// Where it is in its life.
    pub state: State,
    /// The newest attempt's token.
    pub token: Token,
    /// The newest attempt's nonce.
    pub nonce: Nonce,
    /// The fingerprint of the request.
    pub print: Print,
    /// The newest attempt's terms.
    pub terms: Terms,
    /// How many attempts were granted.
    pub attempts: u32,
    /// When the operation was first claimed.
    pub created_at: Timestamp,
    /// When the newest attempt was claimed.
    pub attempt_at: Timestamp,
    /// When the newest attempt's lease lapses.
    pub lease_until: Timestamp,
    /// When the record reached its present state; kept through a purge.
    pub settled_at: Option<Timestamp>,
    /// Whom the outcome is about, for purging by subject.
    pub subject: Option<Box<str>>,
    /// The stored outcome of a completed record, sealed or plain.
    pub outcome: Option<Bytes>,
    /// What else happened.
    pub history: History,
}

impl Record {
    /// When the record stops counting: only ended records ever do.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let settled_at = self.settled_at.filter(|_| self.state.has_ended())?;
        let by_age = self.created_at.after(self.terms.ttl);
        if mutant::on("expiry-ignores-retry-window") {
            return Some(by_age);
        }
        Some(by_age.max(settled_at.after(self.terms.retry_window)))
    }

    /// Whether the record counts as absent.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        !mutant::on("expired-still-counts") && self.expires_at().is_some_and(|at| now >= at)
    }

    /// Whether the newest attempt's lease has passed with no outcome.
    pub fn is_lapsed(&self, now: Timestamp) -> bool {
        self.state == State::InProgress && now >= self.lease_until
    }

    /// Before this moment the effect may still be on its way, and nobody may be asked about it.
    pub fn may_ask_at(&self) -> Timestamp {
        self.attempt_at.after(self.terms.run_max)
    }

    /// The newest attempt as a writer.
    pub fn holder(&self) -> Holder {
        Holder { operation: self.operation.id(), token: self.token, nonce: self.nonce }
    }

    pub(crate) fn is_held_by(&self, holder: &Holder) -> bool {
        (self.token == holder.token || mutant::on("token-not-compared"))
            && (self.nonce == holder.nonce || mutant::on("nonce-not-compared"))
    }

    /// The record in another state, from now on.
    pub(crate) fn moved(&self, state: State, now: Timestamp) -> Self {
        Self { state, settled_at: Some(now), ..self.clone() }
    }

    pub(crate) fn noting(mut self, at: Timestamp, kind: Kind, note: String) -> Self {
        let (token, nonce) = (self.token, self.nonce);
        self.history.push(Event { at, kind, token, nonce, note, evidence: None });
        self
    }
}

/// The store's time, and a token larger than any it gave before.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The store's clock.
    pub now: Timestamp,
    /// The token a granted claim gets. Meaningless to verbs whose [`Verb::TAKES_TOKEN`] is false.
    pub fresh: Token,
}

/// What a verb decided.
#[derive(Clone, Debug)]
pub struct Step<Answer> {
    /// What the caller is told.
    pub answer: Answer,
    /// The record to write in place of the one that was there; `None` writes nothing.
    pub put: Option<Record>,
}

impl<Answer> Step<Answer> {
    pub(crate) fn told(answer: Answer) -> Self {
        Self { answer, put: None }
    }

    pub(crate) fn writing(answer: Answer, record: Record) -> Self {
        Self { answer, put: Some(record) }
    }
}

/// A verb of a store, as a value: the pure half of one atomic step.
pub trait Verb: Clone + Send + Sync + 'static {
    /// What the caller is told.
    type Answer: Send + 'static;

    /// Whether a granted decision uses [`Moment::fresh`].
    const TAKES_TOKEN: bool;

    /// The operation it is about.
    fn operation(&self) -> OperationId;

    /// Decides. `current` is the record under this operation's id, expired or not.
    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Self::Answer>;
}

/// What the sweeper does with a record it looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swept {
    /// Expired: delete it.
    Gone,
    /// An old unknown: write it back without paths and evidence. It still counts.
    Shrunk(Box<Record>),
    /// Leave it, and look again at this time.
    Kept(Timestamp),
}

/// When the sweeper first needs to look at a record. Fixed at the claim, so that an index on it
/// is not touched when the operation completes.
pub fn first_look(record: &Record) -> Timestamp {
    record.created_at.after(record.terms.ttl)
}

/// The sweeper's decision about one record.
pub fn sweep(record: &Record, now: Timestamp, unknown_kept: Duration) -> Swept {
    let expired = record.is_expired(now) || mutant::on("sweeps-everything");
    if expired {
        return Swept::Gone;
    }
    let again = match (record.expires_at(), record.settled_at) {
        (Some(expiry), _) => expiry,
        (None, Some(since)) if record.state == State::Unknown => {
            let shrink_at = since.after(unknown_kept);
            let bulky = record.history.has_evidence() || record.print.paths != Paths::default();
            if now >= shrink_at && bulky {
                let mut small = record.clone();
                small.print.paths = Paths::default();
                small.history.drop_evidence();
                return Swept::Shrunk(Box::new(small));
            }
            shrink_at.max(now.after(record.terms.ttl))
        }
        _ => now.after(record.terms.ttl),
    };
    Swept::Kept(again)
}
