//! The other verbs: renew, complete, release, mark unknown, settle, purge.
//!
//! Each compares who is writing with who may, before it changes anything, and each can be
//! repeated: finding its own write already there, it says so and writes nothing.

use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::fingerprint::Paths;
use crate::history::{Event, History, Kind};
use crate::lease::{Holder, Nonce, Token};
use crate::policy::TTL_MAX;
use crate::record::{Moment, Record, Recovery, State, Step, Verb};
use crate::{OperationId, mutant};

/// Why a write was refused: the attempt no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The record's state, or `None` if there is no record.
    pub state: Option<State>,
    /// The newest attempt's token.
    pub token: Option<Token>,
    /// The refused outcome is kept as evidence. If not, the history still says that there was one.
    pub evidence_kept: bool,
}

impl Stale {
    fn of(current: Option<&Record>) -> Self {
        let token = current.map(|record| record.token);
        Self { state: current.map(|record| record.state), token, evidence_kept: false }
    }
}

/// Keeps a lease.
#[derive(Clone, Debug)]
pub struct Renew {
    /// Who holds it.
    pub holder: Holder,
    /// How long it shall last from now.
    pub lease: Duration,
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lasts until then. A lapsed one that nobody took over is held again.
    Kept {
        /// On the store's clock.
        until: Timestamp,
    },
    /// The attempt no longer counts, or somebody called it unknown.
    Lost(Stale),
}

impl Verb for Renew {
    type Answer = Renewal;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        self.holder.operation
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Renewal> {
        match current {
            Some(record) if record.state == State::InProgress && record.is_held_by(&self.holder) => {
                // Never backwards: a clock that jumped back must not shorten a lease.
                let wanted = at.now.after(self.lease);
                let shorter = mutant::on("renewal-shortens");
                let until = if shorter { wanted } else { record.lease_until.max(wanted) };
                let renewed = Record { lease_until: until, ..record.clone() };
                if mutant::on("renewal-not-written") {
                    return Step::told(Renewal::Kept { until });
                }
                Step::writing(Renewal::Kept { until }, renewed)
            }
            other => Step::told(Renewal::Lost(Stale::of(other))),
        }
    }
}

/// Stores the outcome of an attempt.
#[derive(Clone, Debug)]
pub struct Complete {
    /// Who ran.
    pub holder: Holder,
    /// The outcome, sealed or plain.
    pub outcome: Bytes,
    /// Remember it at least this long, counted like the TTL from the operation's creation. More than
    /// the record's own TTL is granted up to [`TTL_MAX`]; less changes nothing.
    pub ttl_min: Option<Duration>,
}

/// What came of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The outcome is stored, by this call or by an earlier copy of it.
    Stored,
    /// The attempt no longer counts; its outcome may tell of a second effect.
    Refused(Stale),
}

impl Verb for Complete {
    type Answer = Completion;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        self.holder.operation
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Completion> {
        let Some(record) = current else { return Step::told(Completion::Refused(Stale::of(None))) };
        let held = record.is_held_by(&self.holder);
        match record.state {
            State::InProgress | State::Unknown if held => {
                let late = record.state == State::Unknown;
                let mut done = record.moved(State::Completed, at.now);
                done.outcome = Some(self.outcome.clone());
                done.terms.ttl = self.ttl(record);
                if late {
                    done = done.noting(at.now, Kind::LateOutcome, String::new());
                }
                Step::writing(Completion::Stored, done)
            }
            // The same bytes, by the same attempt: a copy of the write that stored them.
            State::Completed if held && record.outcome.as_ref() == Some(&self.outcome) => {
                Step::told(Completion::Stored)
            }
            State::Completed if mutant::on("completed-may-change") => {
                let mut changed = record.moved(State::Completed, at.now);
                changed.outcome = Some(self.outcome.clone());
                Step::writing(Completion::Stored, changed)
            }
            _ => self.refuse(record, at.now),
        }
    }
}

impl Complete {
    /// How long the record is kept from its creation: never shorter than it would have been.
    fn ttl(&self, record: &Record) -> Duration {
        let asked = self.ttl_min.unwrap_or_default().min(TTL_MAX);
        let shorter = self.ttl_min.is_some() && mutant::on("keep-longer-shortens");
        if shorter { asked } else { record.terms.ttl.max(asked) }
    }

    fn refuse(&self, record: &Record, now: Timestamp) -> Step<Completion> {
        let holder = self.holder;
        let stale = |history: &History| Stale {
            evidence_kept: history.refused(&holder).is_some_and(|event| event.evidence.is_some()),
            ..Stale::of(Some(record))
        };
        if record.history.refused(&holder).is_some() || mutant::on("refused-outcome-forgotten") {
            return Step::told(Completion::Refused(stale(&record.history)));
        }
        let mut noted = record.clone();
        noted.history.push(Event {
            at: now,
            kind: Kind::RefusedOutcome,
            token: holder.token,
            nonce: holder.nonce,
            note: String::new(),
            evidence: (record.state != State::Tombstone).then(|| self.outcome.clone()),
        });
        Step::writing(Completion::Refused(stale(&noted.history)), noted)
    }
}

/// What came of a release, of calling an attempt unknown, of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The record is in the state asked for, by this call or by an earlier copy of it.
    Made,
    /// It is not: the caller no longer counts, or the moment has not come.
    Refused(Stale),
}

/// The newest attempt reports that nothing happened. Its word counts also after others called it
/// unknown: it knows what it did not do.
#[derive(Clone, Debug)]
pub struct Release {
    /// Who says so.
    pub holder: Holder,
}

impl Verb for Release {
    type Answer = Change;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        self.holder.operation
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Change> {
        match current {
            Some(record) if record.is_held_by(&self.holder) => match record.state {
                State::InProgress | State::Unknown => {
                    let released = record.moved(State::Released, at.now);
                    Step::writing(Change::Made, released.noting(at.now, Kind::Released, String::new()))
                }
                State::Released => Step::told(Change::Made),
                _ => Step::told(Change::Refused(Stale::of(current))),
            },
            _ => Step::told(Change::Refused(Stale::of(current))),
        }
    }
}

/// Who may call an attempt unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The holder, who cannot tell.
    Holder(Holder),
    /// Anybody, once the lease of this attempt has lapsed.
    Lapse {
        /// The operation.
        operation: OperationId,
        /// The attempt seen.
        token: Token,
    },
}

/// Calls an attempt unknown.
#[derive(Clone, Debug)]
pub struct MarkUnknown {
    /// On whose word.
    pub witness: Witness,
    /// Why, for people.
    pub note: String,
}

impl Verb for MarkUnknown {
    type Answer = Change;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        match self.witness {
            Witness::Holder(holder) => holder.operation,
            Witness::Lapse { operation, .. } => operation,
        }
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Change> {
        let refused = || Step::told(Change::Refused(Stale::of(current)));
        let Some(record) = current else { return refused() };
        let (may, kind) = match self.witness {
            Witness::Holder(holder) => (record.is_held_by(&holder), Kind::ReportedUnknown),
            Witness::Lapse { token, .. } => {
                let lapsed = record.is_lapsed(at.now) || mutant::on("live-lease-called-lapsed");
                let rerun = record.terms.recovery == Recovery::Rerun;
                let done = record.state == State::Unknown;
                (record.token == token && (done || lapsed && !rerun), Kind::Lapsed)
            }
        };
        match record.state {
            State::InProgress if may => {
                let unknown = record.moved(State::Unknown, at.now);
                Step::writing(Change::Made, unknown.noting(at.now, kind, self.note.clone()))
            }
            State::Unknown if may => Step::told(Change::Made),
            _ => refused(),
        }
    }
}

/// What somebody found out about an unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It happened, with this outcome (sealed or plain).
    Done(Bytes),
    /// It did not happen and will not.
    Never,
}

/// Who found it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settler {
    /// A person, by name.
    Operator(String),
    /// The party that was asked. To say *never* it must refuse this token and all below from now on.
    Asked {
        /// The highest token it refuses.
        refused_through: Token,
    },
}

/// Ends an unknown.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The operation.
    pub operation: OperationId,
    /// The attempt the finding is about.
    pub token: Token,
    /// This call's own nonce, so that it can be repeated.
    pub nonce: Nonce,
    /// What was found.
    pub finding: Finding,
    /// By whom.
    pub by: Settler,
    /// Why, for people.
    pub note: String,
}

impl Verb for Settle {
    type Answer = Change;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        self.operation
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Change> {
        let Some(record) = current else { return Step::told(Change::Refused(Stale::of(None))) };
        let kind = match self.finding {
            Finding::Done(_) => Kind::SettledDone,
            Finding::Never => Kind::SettledNever,
        };
        let repeated =
            record.history.events().iter().any(|event| event.kind == kind && event.nonce == self.nonce);
        if repeated {
            return Step::told(Change::Made);
        }
        if record.state != State::Unknown || record.token != self.token || !self.may_say_so(record, at.now) {
            return Step::told(Change::Refused(Stale::of(Some(record))));
        }
        let mut settled = match &self.finding {
            Finding::Done(outcome) => {
                let mut done = record.moved(State::Completed, at.now);
                done.outcome = Some(outcome.clone());
                done
            }
            Finding::Never => record.moved(State::Released, at.now),
        };
        let note = match &self.by {
            Settler::Operator(name) => format!("{name}: {}", self.note),
            Settler::Asked { refused_through } => {
                format!("asked (tokens to {refused_through}): {}", self.note)
            }
        };
        let (token, nonce) = (self.token, self.nonce);
        settled.history.push(Event { at: at.now, kind, token, nonce, note, evidence: None });
        Step::writing(Change::Made, settled)
    }
}

impl Settle {
    /// An asked party is believed only when nothing can be on its way to it any more.
    fn may_say_so(&self, record: &Record, now: Timestamp) -> bool {
        match self.by {
            Settler::Operator(_) => true,
            Settler::Asked { refused_through } => {
                let landed = now >= record.may_ask_at() || mutant::on("asked-too-early");
                let fenced = refused_through >= record.token || mutant::on("never-without-fence");
                landed && (fenced || self.finding != Finding::Never)
            }
        }
    }
}

/// Removes the body of an ended operation, and keeps that its key was used.
#[derive(Clone, Debug)]
pub struct Purge {
    /// The operation.
    pub operation: OperationId,
    /// This call's own nonce.
    pub nonce: Nonce,
    /// Who wants it, and why.
    pub note: String,
}

impl Verb for Purge {
    type Answer = Change;
    const TAKES_TOKEN: bool = false;

    fn operation(&self) -> OperationId {
        self.operation
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Change> {
        match current {
            Some(record) if matches!(record.state, State::Completed | State::Released) => {
                let mut purged = Record { state: State::Tombstone, outcome: None, ..record.clone() };
                purged.subject = None;
                purged.print.paths = Paths::default();
                purged.history.drop_evidence();
                let (token, nonce, note) = (record.token, self.nonce, self.note.clone());
                let event = Event { at: at.now, kind: Kind::Purged, token, nonce, note, evidence: None };
                purged.history.push(event);
                Step::writing(Change::Made, purged)
            }
            Some(record) if record.state == State::Tombstone => Step::told(Change::Made),
            other => Step::told(Change::Refused(Stale::of(other))),
        }
    }
}
