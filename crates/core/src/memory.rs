//! The reference store: a map in this process, driven by nothing but the transition functions.
//!
//! It is the model every other store is compared with, and a real store for effects that need not
//! survive the process. It does not pretend to be durable.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::claim::{self, Claim};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Kind};
use crate::fingerprint::{HashKey, KEYS_MAX};
use crate::lease::{Nonce, Token};
use crate::record::{self, Moment, Record, State, Swept, Verb};
use crate::store::{
    Capabilities, ClockSource, Durability, EffectStore, Filter, LOOK_MAX, Mark, Page, Pending, Status,
    SubjectPurge, SweepReport,
};
use crate::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use crate::{OperationId, mutant};

/// A store in this process's memory.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: Snapshot,
    /// The furthest this store has been, kept apart from what a restore puts back.
    seen: Mark,
}

/// Everything a memory store holds, at one moment: its backup.
#[derive(Clone)]
pub struct Snapshot {
    store_id: [u8; 16],
    mark: Mark,
    hash_keys: Vec<HashKey>,
    records: HashMap<OperationId, Box<Slot>>,
    /// All, for listing; and apart from them those that have not ended, for the recoverer. No two have one token.
    tokens: BTreeMap<Token, OperationId>,
    open: BTreeSet<Token>,
    looks: BTreeSet<(Timestamp, Token)>,
}

/// A record, and when the sweeper looks at it next.
#[derive(Clone)]
struct Slot {
    record: Record,
    look: Timestamp,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on a clock of the caller's choice.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let state = Snapshot {
            store_id: *Nonce::random().as_bytes(),
            mark: Mark { epoch: 1, token: Token(0) },
            hash_keys: vec![HashKey::new(1, secret())],
            records: HashMap::new(),
            tokens: BTreeMap::new(),
            open: BTreeSet::new(),
            looks: BTreeSet::new(),
        };
        let seen = state.mark;
        Self { clock, inner: Mutex::new(Inner { state, seen }) }
    }

    /// A copy of all it holds.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().state.clone()
    }

    /// Puts an earlier copy back, as a restore from backup would. If the copy is older than what
    /// was seen since, the store answers nothing until that is acknowledged.
    pub fn restore(&self, snapshot: Snapshot) {
        self.lock().state = snapshot;
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.lock().state.records.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while holding the lock cannot leave a step half done: decisions come first.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let inner = self.lock();
        match inner.state.mark.is_behind(inner.seen) {
            true => Err(Error::new(
                Kind::WentBack,
                "the memory store was restored from an older state; acknowledge it before use",
            )),
            false => Ok(inner),
        }
    }

    fn now(&self) -> Timestamp {
        if mutant::on("judged-by-another-clock") { SystemClock.now() } else { self.clock.now() }
    }

    fn step<V: Verb>(&self, verb: &V) -> Result<V::Answer, Error> {
        let now = self.now();
        let mut inner = self.open()?;
        let id = verb.operation();
        let restart = mutant::on("token-may-restart");
        let fresh = if restart { Token(1) } else { Token(inner.state.mark.token.0 + 1) };
        let step = verb.decide(inner.state.record(&id), Moment { now, fresh });
        if let Some(record) = step.put {
            if V::TAKES_TOKEN && record.token == fresh && !restart {
                inner.state.mark.token = fresh;
                inner.seen = inner.seen.max(inner.state.mark);
            }
            inner.state.put(record);
        }
        Ok(step.answer)
    }

    fn pend<T: Send + 'static>(&self, answer: Result<T, Error>) -> Pending<'_, T> {
        Box::pin(std::future::ready(answer))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

fn secret() -> [u8; 32] {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).expect("the operating system gives random bytes");
    secret
}

impl Snapshot {
    fn record(&self, id: &OperationId) -> Option<&Record> {
        self.records.get(id).map(|slot| &slot.record)
    }

    fn put(&mut self, record: Record) {
        let id = record.operation.id();
        let is_open = matches!(record.state, State::InProgress | State::Unknown);
        let token = record.token;
        let is_new = match self.records.entry(id) {
            Entry::Vacant(empty) => {
                let look = record::first_look(&record);
                self.looks.insert((look, token));
                empty.insert(Box::new(Slot { record, look }));
                true
            }
            Entry::Occupied(mut full) => {
                let slot = full.get_mut();
                let before = std::mem::replace(&mut slot.record, record);
                if before.token != token || !is_open {
                    self.open.remove(&before.token);
                }
                if before.token != token {
                    self.tokens.remove(&before.token);
                    self.looks.remove(&(slot.look, before.token));
                    slot.look = record::first_look(&slot.record);
                    self.looks.insert((slot.look, token));
                }
                before.token != token
            }
        };
        if is_new {
            self.tokens.insert(token, id);
        }
        if is_open && is_new {
            self.open.insert(token);
        }
    }

    fn schedule(&mut self, id: OperationId, look: Timestamp) {
        if let Some(slot) = self.records.get_mut(&id) {
            let before = std::mem::replace(&mut slot.look, look);
            self.looks.remove(&(before, slot.record.token));
            self.looks.insert((look, slot.record.token));
        }
    }

    fn remove(&mut self, id: OperationId) {
        if let Some(slot) = self.records.remove(&id) {
            self.tokens.remove(&slot.record.token);
            self.open.remove(&slot.record.token);
            self.looks.remove(&(slot.look, slot.record.token));
        }
    }

    fn list(&self, now: Timestamp, filter: &Filter, after: Token, limit: u32) -> Page {
        let limit = limit.min(LOOK_MAX) as usize;
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let all: Box<dyn Iterator<Item = (&Token, &OperationId)>> = match filter.is_only_unsettled() {
            true => Box::new(self.open.range(above).filter_map(|token| self.tokens.get_key_value(token))),
            false => Box::new(self.tokens.range(above)),
        };
        let most = if mutant::on("list-ignores-limit") { usize::MAX } else { limit };
        let (mut looked, mut last, mut records) = (0, None, Vec::new());
        for (token, id) in all.take(most) {
            (looked, last) = (looked + 1, Some(*token));
            if let Some(record) = self.record(id).filter(|record| filter.matches(record)) {
                records.push(Record { outcome: None, ..record.clone() });
            }
        }
        Page { now, records, next: last.filter(|_| looked == limit) }
    }

    fn sweep(&mut self, now: Timestamp, limit: u32, unknown_kept: Duration) -> SweepReport {
        let mut report = SweepReport::default();
        let most = if mutant::on("sweep-ignores-limit") { usize::MAX } else { limit as usize };
        let due = self.looks.iter().take_while(|(look, _)| *look <= now).take(most);
        let due: Vec<OperationId> = due.filter_map(|(_, token)| self.tokens.get(token).copied()).collect();
        for id in &due {
            let Some(record) = self.record(id) else { continue };
            match record::sweep(record, now, unknown_kept) {
                Swept::Gone => {
                    self.remove(*id);
                    report.deleted += 1;
                }
                Swept::Shrunk(small) => {
                    let again = now.after(small.terms.ttl);
                    self.put(*small);
                    self.schedule(*id, again);
                    report.shrunk += 1;
                }
                Swept::Kept(again) => self.schedule(*id, again),
            }
        }
        report.more = due.len() == limit as usize;
        report
    }
}

impl EffectStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "memory",
            clock: ClockSource::Host,
            durability: Durability::Process,
            same_transaction: false,
            time_precision: Duration::from_micros(1),
        }
    }

    fn claim<'a>(&'a self, request: &'a claim::Request) -> Pending<'a, Claim> {
        self.pend(self.step(request))
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        self.pend(self.step(renew))
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        self.pend(self.step(complete))
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        self.pend(self.step(release))
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        self.pend(self.step(mark))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        self.pend(self.step(settle))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        self.pend(self.step(purge))
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        let purge = || {
            let now = self.now();
            let mut inner = self.open()?;
            let mut report = SubjectPurge::default();
            let theirs: Vec<Record> = inner
                .state
                .records
                .values()
                .filter(|slot| slot.record.subject.as_deref() == Some(subject))
                .map(|slot| slot.record.clone())
                .collect();
            for record in theirs {
                let operation = record.operation.id();
                let step = Purge { operation, nonce, note: note.to_owned() }
                    .decide(Some(&record), Moment { now, fresh: Token(0) });
                match step.put {
                    None => report.open += 1,
                    Some(_) if report.purged == u64::from(limit) => report.more = true,
                    Some(tombstone) => {
                        inner.state.put(tombstone);
                        report.purged += 1;
                    }
                }
            }
            Ok(report)
        };
        self.pend(purge())
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        self.pend(self.open().map(|inner| inner.state.record(&operation).cloned()))
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        let now = self.now();
        self.pend(self.open().map(|inner| inner.state.list(now, filter, after, limit)))
    }

    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        let now = self.now();
        self.pend(self.open().map(|mut inner| inner.state.sweep(now, limit, unknown_kept)))
    }

    fn status(&self) -> Pending<'_, Status> {
        let inner = self.lock();
        let Snapshot { store_id, mark, hash_keys, .. } = &inner.state;
        let went_back_from = mark.is_behind(inner.seen).then_some(inner.seen);
        let status =
            Status { store_id: *store_id, mark: *mark, went_back_from, hash_keys: hash_keys.clone() };
        self.pend(Ok(status))
    }

    fn acknowledge_restore<'a>(&'a self, _by: &'a str) -> Pending<'a, Mark> {
        let mut inner = self.lock();
        let mark = inner.state.mark.acknowledged(inner.seen);
        inner.state.mark = mark;
        inner.seen = mark;
        self.pend(Ok(mark))
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        let rotated = self.open().map(|mut inner| {
            let first = inner.state.mark.first_key_version();
            let keys = &mut inner.state.hash_keys;
            let version = keys.iter().map(|key| key.version).max().unwrap_or(0).max(first - 1) + 1;
            keys.insert(0, HashKey::new(version, secret()));
            keys.truncate(KEYS_MAX);
            version
        });
        self.pend(rotated)
    }
}
