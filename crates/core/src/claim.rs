//! Claiming: of any number of simultaneous attempts, one gets the lease.

use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::fingerprint::Print;
use crate::history::{History, Kind};
use crate::lease::{Holder, Lease, Nonce, Token};
use crate::record::{Moment, Record, Recovery, State, Step, Terms, Verb};
use crate::{Operation, OperationId, mutant};

/// A wish to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to run.
    pub operation: Arc<Operation>,
    /// This attempt's random id. Repeating a request with its nonce gives the same answer.
    pub nonce: Nonce,
    /// The request's fingerprint, under one key version.
    pub print: Print,
    /// The terms of the attempt.
    pub terms: Terms,
    /// Whom the outcome will be about, for purging by subject.
    pub subject: Option<Box<str>>,
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller holds the lease, and nobody else does.
    Granted(Lease),
    /// Another attempt is running.
    InFlight {
        /// Since when.
        since: Timestamp,
        /// When its lease lapses unless renewed.
        until: Timestamp,
    },
    /// It has happened; this is the stored outcome.
    Completed {
        /// As stored: sealed or plain.
        outcome: Bytes,
        /// When it was stored.
        at: Timestamp,
    },
    /// It may or may not have happened.
    Unknown {
        /// Since when.
        since: Timestamp,
        /// Whether anybody will be asked.
        recovery: Recovery,
    },
    /// The key was used for another request.
    Mismatch {
        /// That request's fingerprint.
        stored: Print,
    },
    /// The stored fingerprint was made under another key version: repeat the claim under that one.
    OtherVersion {
        /// The version to use.
        version: u32,
    },
    /// It ended, and its body was purged.
    Purged {
        /// Until then the key stays used.
        until: Timestamp,
    },
    /// This very attempt was released before; a late copy of its claim must not revive it.
    Withdrawn,
    /// The store's next token is not above one it gave before: it was restored from an older state.
    WentBack {
        /// The token the record already had.
        held: Token,
    },
}

impl Verb for Request {
    type Answer = Claim;
    const TAKES_TOKEN: bool = true;

    fn operation(&self) -> OperationId {
        self.operation.id()
    }

    fn decide(&self, current: Option<&Record>, at: Moment) -> Step<Claim> {
        if let Some(record) = current
            && at.fresh <= record.token
            && !mutant::on("token-may-restart")
        {
            return Step::told(Claim::WentBack { held: record.token });
        }
        match current.filter(|record| !record.is_expired(at.now)) {
            None => self.grant(at, None),
            Some(record) if record.nonce == self.nonce => self.repeat(record, at),
            Some(record) => self.meet(record, at),
        }
    }
}

impl Request {
    /// Another attempt's record is there.
    fn meet(&self, record: &Record, at: Moment) -> Step<Claim> {
        if record.print.version != self.print.version {
            return Step::told(Claim::OtherVersion { version: record.print.version });
        }
        let unseen = record.state == State::InProgress && mutant::on("mismatch-unseen-in-flight");
        if record.print.digest != self.print.digest && !unseen && !mutant::on("fingerprint-ignored") {
            return Step::told(Claim::Mismatch { stored: record.print.clone() });
        }
        match record.state {
            State::InProgress if record.is_lapsed(at.now) => match record.terms.recovery {
                Recovery::Rerun => self.grant(at, Some((record, Kind::TakenOver))),
                Recovery::Hold | Recovery::Ask if mutant::on("lapsed-always-reruns") => {
                    self.grant(at, Some((record, Kind::TakenOver)))
                }
                Recovery::Hold | Recovery::Ask => {
                    let unknown = record.moved(State::Unknown, at.now);
                    let answer = answer(&unknown);
                    Step::writing(answer, unknown.noting(at.now, Kind::Lapsed, String::new()))
                }
            },
            State::InProgress if mutant::on("claim-ignores-lease") => {
                self.grant(at, Some((record, Kind::TakenOver)))
            }
            State::Completed if mutant::on("completed-runs-again") => {
                self.grant(at, Some((record, Kind::TakenOver)))
            }
            State::Released if self.was_withdrawn(record) => Step::told(Claim::Withdrawn),
            State::Released => self.grant(at, Some((record, Kind::Reclaimed))),
            _ => Step::told(answer(record)),
        }
    }

    /// Whether this attempt ended earlier, and others came and went since.
    fn was_withdrawn(&self, record: &Record) -> bool {
        let ended = |kind| matches!(kind, Kind::Released | Kind::Reclaimed | Kind::TakenOver);
        let mut events = record.history.events().iter();
        events.any(|event| ended(event.kind) && event.nonce == self.nonce)
    }

    /// This attempt's own nonce is there: the claim was applied before, and its answer got lost.
    fn repeat(&self, record: &Record, at: Moment) -> Step<Claim> {
        match record.state {
            State::InProgress if record.is_lapsed(at.now) => {
                // Nobody ran meanwhile: the attempt begins only now.
                let lease_until = at.now.after(self.terms.lease);
                let renewed = Record { attempt_at: at.now, lease_until, ..record.clone() };
                Step::writing(granted(&renewed), renewed)
            }
            State::InProgress => Step::told(granted(record)),
            State::Released if mutant::on("withdrawn-claim-revives") => {
                self.grant(at, Some((record, Kind::Reclaimed)))
            }
            State::Released => Step::told(Claim::Withdrawn),
            _ => Step::told(answer(record)),
        }
    }

    fn grant(&self, at: Moment, previous: Option<(&Record, Kind)>) -> Step<Claim> {
        let mut record = Record {
            operation: self.operation.clone(),
            state: State::InProgress,
            token: at.fresh,
            nonce: self.nonce,
            print: self.print.clone(),
            terms: self.terms,
            attempts: 1,
            created_at: at.now,
            attempt_at: at.now,
            lease_until: at.now.after(self.terms.lease),
            settled_at: None,
            subject: self.subject.clone(),
            outcome: None,
            history: History::default(),
        };
        if let Some((previous, kind)) = previous {
            // The note is about the attempt that ends here; then the new one takes its place.
            let noted = previous.clone().noting(at.now, kind, String::new());
            record.attempts = noted.attempts.saturating_add(1);
            record.created_at = noted.created_at;
            record.history = noted.history;
        }
        Step::writing(granted(&record), record)
    }
}

fn granted(record: &Record) -> Claim {
    Claim::Granted(Lease {
        holder: Holder { operation: record.operation.id(), token: record.token, nonce: record.nonce },
        attempt: record.attempts,
        until: record.lease_until,
        granted: record.terms.lease,
    })
}

/// What a record that is not to be claimed tells whoever asks.
fn answer(record: &Record) -> Claim {
    let since = record.settled_at.unwrap_or(record.attempt_at);
    match record.state {
        State::InProgress | State::Released => {
            Claim::InFlight { since: record.attempt_at, until: record.lease_until }
        }
        State::Completed => {
            Claim::Completed { outcome: record.outcome.clone().unwrap_or_default(), at: since }
        }
        State::Unknown => Claim::Unknown { since, recovery: record.terms.recovery },
        State::Tombstone => Claim::Purged { until: record.expires_at().unwrap_or(since) },
    }
}
