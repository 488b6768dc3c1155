//! The contract between Semel and a database.
//!
//! A store keeps one [`Record`] per operation and offers a few verbs. Every write verb is one
//! atomic step: fetch the record, let the verb [decide](crate::record::Verb::decide), write what it
//! decided, all or nothing, one at a time per operation. What a verb may do is decided by the
//! functions in [`record`](crate::record), [`claim`](mod@crate::claim) and [`verbs`](crate::verbs)
//! alone; a store that expresses them in its own language must give the same answers, and
//! `semel-testkit` compares.
//!
//! Writing a new store: implement the trait, hand the suite a rig for it, and mend what it names.
//!
//! # Cancellation
//! Every future here may be dropped at any point. The call it stood for has then been applied or
//! not; repeating it with the same nonce finds out.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::claim::{self, Claim};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::fingerprint::HashKey;
use crate::lease::{Nonce, Token};
use crate::record::{Record, State};
use crate::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use crate::{Key, Operation, OperationId, Scope, mutant};

/// The future of a store's answer.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What a store can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for people and metrics.
    pub engine: &'static str,
    /// Whose clock judges deadlines.
    pub clock: ClockSource,
    /// What an answered write survives.
    pub durability: Durability,
    /// A caller's own transaction can carry claim and outcome.
    pub same_transaction: bool,
    /// Times are kept this finely.
    pub time_precision: Duration,
}

/// Whose clock judges deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The database server's, the same for all its clients.
    Server,
    /// The clock of the machine all users of the store run on.
    Host,
}

/// What an answered write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: it lives in this process.
    Process,
    /// A crash of process and machine.
    Disk,
}

/// How far a store has come; it never goes back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark {
    /// Grows each time an operator acknowledges a restored state.
    pub epoch: u64,
    /// The highest token given.
    pub token: Token,
}

/// Tokens skipped when a restored state is acknowledged, so that none the lost state gave out
/// after it was last seen is given again.
pub const RESTORE_GAP: u64 = 1 << 32;

impl Mark {
    /// Whether a store found at `self` is behind what was seen of it before.
    pub fn is_behind(self, seen: Self) -> bool {
        self < seen && !crate::mutant::on("restore-unnoticed")
    }

    /// The first version a key of fingerprints made in this epoch may have. Each epoch has versions of its own: one that
    /// began with a restore has forgotten how far the lost one had come, and processes may still use its keys.
    pub fn first_key_version(self) -> u32 {
        const EPOCHS: u64 = 1 << 15;
        let before = if crate::mutant::on("lost-key-version-again") {
            0
        } else {
            self.epoch.min(EPOCHS - 1).saturating_sub(1)
        };
        (u32::try_from(before).unwrap_or(0) << 16) + 1
    }

    /// Where a restored store starts again once an operator has acknowledged.
    pub fn acknowledged(self, seen: Self) -> Self {
        let token = self.token.max(seen.token).0.saturating_add(RESTORE_GAP);
        Self { epoch: self.epoch.max(seen.epoch) + 1, token: Token(token) }
    }
}

/// A store's description of itself.
#[derive(Debug)]
pub struct Status {
    /// Made at random when the store was created.
    pub store_id: [u8; 16],
    /// How far it has come.
    pub mark: Mark,
    /// What was seen of it before, if that is further: it answers nothing until acknowledged.
    pub went_back_from: Option<Mark>,
    /// The keys of fingerprints, newest first.
    pub hash_keys: Vec<HashKey>,
}

/// Which records a listing shows. What is left out matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this deployment.
    pub namespace: Option<String>,
    /// Of this tenant, or of exactly none.
    pub tenant: Option<Option<String>>,
    /// Of this route.
    pub route: Option<String>,
    /// With this key, in whatever scope.
    pub key: Option<Key>,
    /// In one of these states.
    pub states: Option<Vec<State>>,
}

impl Filter {
    /// What has not ended: in progress or unknown.
    pub fn unsettled() -> Self {
        Self { states: Some(vec![State::InProgress, State::Unknown]), ..Self::default() }
    }

    /// Whether a record is to be shown.
    pub fn matches(&self, record: &Record) -> bool {
        let scope = record.operation.scope();
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let tenant = match &self.tenant {
            Some(None) if mutant::on("list-ignores-no-tenant") => true,
            Some(tenant) => tenant.as_deref() == scope.tenant(),
            None => true,
        };
        tenant
            && is(&self.namespace, scope.namespace())
            && is(&self.route, scope.route())
            && self.key.as_ref().is_none_or(|key| key == record.operation.key())
            && self.states.as_ref().is_none_or(|states| states.contains(&record.state))
    }

    /// Whether it asks only for what has not ended. A store that keeps those apart need look at
    /// nothing else.
    pub fn is_only_unsettled(&self) -> bool {
        let open = |state: &State| matches!(state, State::InProgress | State::Unknown);
        self.states.as_ref().is_some_and(|states| states.iter().all(open))
    }

    /// The operation it names, if it gives all four parts of one. [`EffectStore::get`] then finds at
    /// once what a listing would have to search for: stores have no index on keys.
    pub fn operation(&self) -> Option<Operation> {
        let (namespace, route) = (self.namespace.as_deref()?, self.route.as_deref()?);
        let scope = match self.tenant.as_ref()? {
            Some(tenant) => Scope::new(namespace, tenant, route),
            None => Scope::shared(namespace, route),
        };
        Some(Operation::new(scope.ok()?, self.key.clone()?))
    }
}

/// Most records looked at in one call of [`EffectStore::list`], whatever limit the caller gives.
pub const LOOK_MAX: u32 = 5000;

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    /// The store's time.
    pub now: Timestamp,
    /// The records that match, by token, whole but for their outcomes: those can be large, and
    /// [`EffectStore::get`] reads them one by one.
    pub records: Vec<Record>,
    /// Where the next page starts, also when this one holds no match; `None` at the end.
    pub next: Option<Token>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Expired records deleted.
    pub deleted: u64,
    /// Old unknowns shrunk.
    pub shrunk: u64,
    /// There is more to do now.
    pub more: bool,
}

/// What a purge by subject did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubjectPurge {
    /// Records that became tombstones.
    pub purged: u64,
    /// Records that have not ended and so cannot be purged yet.
    pub open: u64,
    /// There is more to do: call again.
    pub more: bool,
}

/// A database that remembers operations.
///
/// No verb has a default: a store that forgot one does not compile.
pub trait EffectStore: Send + Sync + 'static {
    /// What it promises. Constant for the life of the store.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the lease of an operation: one atomic insert-if-absent, or the transition the
    /// table allows from what is there.
    ///
    /// After a crash right after it: the record is in progress under the caller's nonce and will
    /// lapse; or nothing was written. Repeating with the same nonce gives the same lease again.
    fn claim<'a>(&'a self, request: &'a claim::Request) -> Pending<'a, Claim>;

    /// Keeps the lease. After a crash right after it: the lease lasts until the new deadline, or
    /// the old one. Repeating is harmless.
    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal>;

    /// Stores the outcome. After a crash right after it: the outcome is stored and will be
    /// replayed; or the record is as before, and lapses. Repeating stores nothing twice. A refused
    /// outcome is kept as evidence in the same step.
    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion>;

    /// Ends an attempt that did nothing. After a crash right after it: the next attempt may run;
    /// or the record lapses. Repeating is harmless.
    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change>;

    /// Calls an attempt unknown. After a crash right after it: the record is unknown, or as
    /// before; nothing runs in either case unless its terms say `rerun`.
    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change>;

    /// Ends an unknown. After a crash right after it: settled, or still unknown.
    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change>;

    /// Removes the body of an ended operation. After a crash right after it: a tombstone, or the
    /// record as before.
    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change>;

    /// Removes the bodies of a subject's ended operations, at most `limit` in one step. After a
    /// crash right after it: that step's records are tombstones, or none of them is.
    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge>;

    /// Reads a record, expired or not. `None` is no proof that nothing runs: only a claim is.
    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>>;

    /// Records that match, expired or not, with tokens above `after`, in their order. Looks at no
    /// more than `limit` records of any state, nor at more than [`LOOK_MAX`], and never makes a claim
    /// wait: finding one key among many takes many calls, each of them short. A claim that commits
    /// late may appear below a token already passed: whoever pages must come back.
    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page>;

    /// Deletes expired records and shrinks unknowns older than `unknown_kept`, looking at no more
    /// than `limit` records. Never makes a claim wait longer than one such batch. After a crash
    /// right after it: what was deleted had expired.
    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport>;

    /// Describes the store. Answers also when it went back.
    fn status(&self) -> Pending<'_, Status>;

    /// An operator accepts that the store was restored from an older state: the epoch grows, and
    /// tokens continue above all that may have been given. After a crash right after it: accepted
    /// or not; repeat it. On a store that did not go back it only begins a new epoch.
    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark>;

    /// Adds a new key for fingerprints and returns its version: the one after the newest, or the
    /// [first of the epoch](Mark::first_key_version), whichever is greater. Older ones stay for comparing, the
    /// newest [`KEYS_MAX`](crate::fingerprint::KEYS_MAX) in all: a record made under a key that fell
    /// out can no longer be compared, so let a TTL pass between rotations. After a crash right after
    /// it: added or not.
    fn rotate_hash_key(&self) -> Pending<'_, u32>;
}
