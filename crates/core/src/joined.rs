//! Claim, effect and outcome in one transaction of the caller: the pure half.
//!
//! A store reads the record under the operation's lock, asks [`begin`], and, when the caller's own
//! statements are done, writes what [`Work::finish`] gives, all in the caller's transaction. Before the
//! commit nobody sees any of it; after it, everything. A crash anywhere leaves all or nothing, so there
//! is no lease to lapse and nothing to recover.
//!
//! It opens no transaction and commits none; both are the caller's.

use std::sync::Arc;

use bytes::Bytes;

use crate::answer::Refusal;
use crate::claim::{Claim, Request};
use crate::clock::Timestamp;
use crate::error::{Error, Kind};
use crate::fingerprint::{Changes, Comparison, Fingerprint};
use crate::lease::{Holder, Nonce};
use crate::outcome::{Body, Outcome, Unreadable};
use crate::policy::DEFAULTS;
use crate::record::{Moment, Record, State, Verb};
use crate::verbs::Complete;
use crate::{Key, Operation, OperationId, Policy, Scope, mutant, seal, subject};

/// A wish to run once in a transaction: everything but the database. Make one per attempt; its nonce is
/// what tells the attempt from others.
#[derive(Clone, Debug)]
pub struct Call {
    operation: Arc<Operation>,
    fingerprint: Fingerprint,
    policy: Policy,
    nonce: Nonce,
    key: Option<Arc<subject::Key>>,
}

impl Call {
    /// An attempt at an operation, with a nonce of its own.
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint, policy: &Policy) -> Self {
        let operation = Arc::new(Operation::new(scope, key));
        Self { operation, fingerprint, policy: policy.clone(), nonce: Nonce::random(), key: None }
    }

    /// The same attempt with the key of its subject in hand. Needed before the transaction begins where
    /// [subjects have keys](crate::policy::Builder::subject_keys): within it nobody else is asked. Elsewhere it
    /// asks nobody and changes nothing.
    ///
    /// # Cancellation
    /// Safe. A key may have been made; the next call finds it.
    pub async fn with_subject_key(self) -> Result<Self, Error> {
        let key = self.policy.subject_key().await?.map(Arc::new);
        Ok(Self { key, ..self })
    }

    /// For stores, before anything else: nothing begins whose outcome could not be sealed.
    pub fn check(&self) -> Result<(), Error> {
        if self.key.is_some() || !self.policy.wants_subject_key() || mutant::on("joined-without-subject-key")
        {
            return Ok(());
        }
        let sentence =
            "the call has no key of its subject; await `with_subject_key` before the transaction begins";
        Err(Error::new(Kind::Misconfigured, sentence))
    }

    /// The same wish as another attempt: after a rollback, say, when the transaction is tried again.
    pub fn again(&self) -> Self {
        Self { nonce: Nonce::random(), ..self.clone() }
    }

    /// What it is about.
    pub fn operation(&self) -> &Arc<Operation> {
        &self.operation
    }

    /// What the store is asked, under the current key of fingerprints.
    pub fn request(&self) -> Request {
        Request {
            operation: self.operation.clone(),
            nonce: self.nonce,
            print: self.fingerprint.current().clone(),
            terms: self.policy.terms(),
            subject: self.policy.settings().subject.clone(),
        }
    }

    /// What it is asked after [`Claim::OtherVersion`], if that version is known here.
    pub fn request_under(&self, version: u32) -> Option<Request> {
        let print = self.fingerprint.under(version)?.clone();
        Some(Request { print, ..self.request() })
    }

    /// The bytes to keep of an outcome: within the policy's limit, redacted, encoded, sealed.
    pub fn prepare(&self, outcome: &Outcome) -> Bytes {
        self.policy.seal(&self.policy.kept(outcome), self.operation.id(), self.key.as_deref())
    }

    fn read(&self, stored: &Bytes) -> Result<Outcome, Unreadable> {
        let in_hand = self.key.as_deref().filter(|key| seal::subject_key(stored) == Some(key.id()));
        match in_hand {
            Some(key) => seal::open_with(stored, self.operation.id(), key),
            None => self.policy.open(stored, self.operation.id()),
        }
    }

    /// What to tell a client who is not to run: the stored outcome, or why there is none. An outcome that was
    /// sealed with another subject's key than the one in hand, or with one that was forgotten, is unreadable here.
    pub fn told(&self, claim: Claim) -> Result<Outcome, Refusal> {
        let (soon, late) = (DEFAULTS.retry_after_min, DEFAULTS.retry_after_max);
        match claim {
            Claim::Completed { outcome, .. } => match self.read(&outcome) {
                Ok(Outcome { status, body: Body::NotKept { .. }, .. }) => {
                    Err(Refusal::BodyNotKept { status })
                }
                Ok(outcome) => Ok(outcome),
                Err(why) => Err(Refusal::Unreadable(why)),
            },
            Claim::Unknown { .. } => Err(Refusal::OutcomeUnknown { retry_after: late }),
            Claim::Mismatch { stored } => Err(Refusal::Mismatch(match self.fingerprint.compare(&stored) {
                Comparison::Different(changes) => changes,
                _ => Changes::default(),
            })),
            Claim::OtherVersion { version } if version > self.fingerprint.current().version => {
                Err(Refusal::KeyNotLoaded { version, retry_after: soon })
            }
            Claim::OtherVersion { version } => Err(Refusal::Incomparable { version }),
            Claim::Purged { .. } => Err(Refusal::Purged),
            Claim::WentBack { .. } => Err(Refusal::StoreUnavailable { retry_after: late }),
            Claim::InFlight { .. } | Claim::Granted(_) | Claim::Withdrawn => {
                Err(Refusal::InFlight { retry_after: soon })
            }
        }
    }
}

/// What came of beginning.
#[derive(Clone, Debug)]
pub enum Begun {
    /// Run the effect, finish, commit.
    Run(Box<Work>),
    /// Do not run: this is why. Never [`Claim::Granted`].
    Told(Claim),
}

/// An attempt that lives in the caller's transaction.
#[derive(Clone, Debug)]
pub struct Work {
    record: Record,
    replaces: Option<Holder>,
}

/// Proof that the transaction of an operation has committed. Made by the store that saw it, and by nobody else.
#[must_use = "it is the answer's right to be called a success"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed(OperationId);

impl Committed {
    /// For stores: the COMMIT was answered, or found to have been applied.
    #[doc(hidden)]
    pub fn seen(operation: OperationId) -> Self {
        Self(operation)
    }

    /// Which operation.
    pub fn operation(&self) -> OperationId {
        self.0
    }
}

/// Decides from the record that is there, read under the operation's lock.
pub fn begin(request: &Request, current: Option<&Record>, at: Moment) -> Begun {
    // A nonce is made for one attempt, and this attempt is only beginning: its own record in progress belongs to
    // one that was committed without its outcome. Whether its effect happened is not known here, lapsed or not.
    if let Some(record) =
        current.filter(|record| record.nonce == request.nonce && record.state == State::InProgress)
    {
        return Begun::Told(Claim::InFlight { since: record.attempt_at, until: record.lease_until });
    }
    let step = request.decide(current, at);
    match (step.answer, step.put) {
        (Claim::Granted(_), Some(record)) => {
            Begun::Run(Box::new(Work { record, replaces: current.map(Record::holder) }))
        }
        (told, _) => Begun::Told(told),
    }
}

impl Work {
    /// The operation it is an attempt at.
    pub fn operation(&self) -> &Operation {
        &self.record.operation
    }

    /// The attempt.
    pub fn holder(&self) -> Holder {
        self.record.holder()
    }

    /// Which attempt at the operation this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.record.attempts
    }

    /// The record of the running attempt, for a store that writes it at once: if the caller then commits
    /// without having finished, there is a claim that lapses, and not an effect that nobody knows of.
    pub fn in_progress(&self) -> &Record {
        &self.record
    }

    /// Whose record must still be there, unchanged, when this one is written; `None`: no record at all.
    /// If it is not, somebody else came in between, outside any transaction like this one: the caller's
    /// transaction must not commit.
    pub fn replaces(&self) -> Option<Holder> {
        self.replaces
    }

    /// The record to write together with the effect.
    pub fn finish(&self, outcome: Bytes, now: Timestamp) -> Record {
        let complete = Complete { holder: self.holder(), outcome, ttl_min: None };
        // Its own record, in progress: completing cannot be refused.
        let at = Moment { now: now.max(self.record.attempt_at), fresh: self.record.token };
        let finished = complete.decide(Some(&self.record), at).put;
        let finished = finished.unwrap_or_else(|| self.record.clone());
        if mutant::on("joined-without-outcome") { self.record.clone() } else { finished }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Fingerprinter, Nonce, Policy, Scope, Token};

    fn request(body: &[u8]) -> Request {
        let keys = vec![crate::fingerprint::HashKey::new(1, [7; 32])];
        let print = Fingerprinter::new(keys).unwrap().of_bytes(body);
        let scope = Scope::shared("shop", "pay").unwrap();
        Request {
            operation: Arc::new(Operation::new(scope, "k-1".parse().unwrap())),
            nonce: Nonce::random(),
            print: print.current().clone(),
            terms: Policy::default().terms(),
            subject: None,
        }
    }

    fn at(micros: i64, fresh: u64) -> Moment {
        Moment { now: Timestamp::from_micros(micros), fresh: Token(fresh) }
    }

    #[test]
    fn what_is_written_with_the_effect_is_replayed_afterwards() {
        // G-30
        let Begun::Run(work) = begin(&request(b"a"), None, at(10, 1)) else { panic!("nothing was there") };
        assert_eq!(work.replaces(), None);
        let record = work.finish(Bytes::from_static(b"paid"), Timestamp::from_micros(20));
        assert_eq!(record.state, State::Completed);
        let Begun::Told(Claim::Completed { outcome, .. }) = begin(&request(b"a"), Some(&record), at(30, 2))
        else {
            panic!("a retry replays");
        };
        assert_eq!(outcome, "paid");
        let told = begin(&request(b"b"), Some(&record), at(30, 2));
        assert!(matches!(told, Begun::Told(Claim::Mismatch { .. })), "{told:?}");
    }

    #[test]
    fn an_attempt_that_was_committed_without_its_outcome_is_not_begun_again() {
        // G-30
        let first = request(b"a");
        let Begun::Run(work) = begin(&first, None, at(10, 1)) else { panic!("nothing was there") };
        let left = work.in_progress().clone();
        for now in [11, i64::MAX / 2] {
            let told = begin(&first, Some(&left), at(now, 2));
            assert!(matches!(told, Begun::Told(Claim::InFlight { .. })), "{told:?}");
        }
    }
}
