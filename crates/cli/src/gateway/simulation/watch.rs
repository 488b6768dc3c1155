//! Seeing everything: in which phase each operation is, and what trouble met it there.
//!
//! It stands between the gateway and the store, hears from clients and service what they do, and looks
//! into the store behind its back. It changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use semel::claim::{Claim, Request};
use semel::record::Verb as _;
use semel::store::{Capabilities, Filter, Mark, Page, Pending, Status, SubjectPurge, SweepReport};
use semel::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use semel::{Clock, EffectStore, Nonce, OperationId, Record, State, Timestamp, Token};

use super::coverage::{Counts, Phase, Trouble};
use super::network::StoreClock;

/// What is known of one operation.
#[derive(Default)]
struct Facts {
    id: Option<OperationId>,
    /// Requests that clients wait for: whose, and since when.
    asks: BTreeMap<u64, (usize, Duration)>,
    /// Calls under way.
    claims: usize,
    questions: usize,
    settlements: usize,
    /// Claims a gateway has heard the answer of.
    heard: Vec<Nonce>,
    charged: Vec<u64>,
    is_completing: bool,
    stored_at: Option<Duration>,
}

impl Facts {
    fn phase(&self, record: Option<&Record>, now: Timestamp) -> Option<Phase> {
        let is_asked_for = !self.asks.is_empty();
        let Some(record) =
            record.filter(|record| !matches!(record.state, State::Released | State::Tombstone))
        else {
            let before = is_asked_for.then_some(Phase::BeforeClaim);
            return if self.claims > 0 { Some(Phase::ClaimSent) } else { before };
        };
        let phase = match record.state {
            State::Completed if self.is_completing => Phase::Completing,
            State::Completed if !is_asked_for => return None,
            State::Completed => {
                let waited = |(_, since): &(usize, Duration)| self.stored_at.is_some_and(|at| *since < at);
                if self.asks.values().any(waited) { Phase::Answering } else { Phase::Replaying }
            }
            State::InProgress if !record.is_lapsed(now) => {
                if !self.heard.contains(&record.nonce) {
                    Phase::ClaimSent
                } else if self.is_completing {
                    Phase::Completing
                } else if self.charged.contains(&record.token.0) {
                    Phase::EffectDone
                } else {
                    Phase::Running
                }
            }
            _ if self.questions + self.settlements > 0 => Phase::Asked,
            _ => Phase::Unknown,
        };
        Some(phase)
    }
}

/// Clones see the same.
#[derive(Clone)]
pub(super) struct Watch {
    memory: Arc<dyn EffectStore>,
    clock: Arc<StoreClock>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    operations: BTreeMap<String, Facts>,
    counts: Counts,
    asks: u64,
    /// The operation the call is about that is just being made.
    calling: Option<String>,
}

/// Something under way about an operation, until it is dropped.
pub(super) struct UnderWay {
    watch: Watch,
    key: String,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Ask(u64),
    Claim,
    Question,
    Settlement,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut seen = self.watch.seen();
        let facts = seen.operations.entry(self.key.clone()).or_default();
        match self.what {
            What::Ask(number) => drop(facts.asks.remove(&number)),
            What::Claim => facts.claims -= 1,
            What::Question => facts.questions -= 1,
            What::Settlement => facts.settlements -= 1,
        }
    }
}

impl Watch {
    pub(super) fn new(memory: Arc<dyn EffectStore>, clock: Arc<StoreClock>) -> Self {
        Self { memory, clock, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic")
    }

    pub(super) fn counts(&self) -> Counts {
        self.seen().counts.clone()
    }

    fn about<T>(&self, key: &str, change: impl FnOnce(&mut Facts) -> T) -> T {
        change(self.seen().operations.entry(key.to_owned()).or_default())
    }

    fn key_of(&self, id: OperationId) -> Option<String> {
        let seen = self.seen();
        seen.operations.iter().find(|(_, facts)| facts.id == Some(id)).map(|(key, _)| key.clone())
    }

    fn under_way(&self, key: &str, what: What) -> UnderWay {
        UnderWay { watch: self.clone(), key: key.to_owned(), what }
    }

    /// A client waits for an answer.
    pub(super) fn asks(&self, client: usize, key: &str) -> UnderWay {
        let since = turmoil::sim_elapsed().unwrap_or_default();
        let mut seen = self.seen();
        seen.asks += 1;
        let number = seen.asks;
        seen.operations.entry(key.to_owned()).or_default().asks.insert(number, (client, since));
        drop(seen);
        self.under_way(key, What::Ask(number))
    }

    /// The service is asked about an operation.
    pub(super) fn questioned(&self, key: &str) -> UnderWay {
        self.about(key, |facts| facts.questions += 1);
        self.under_way(key, What::Question)
    }

    /// The effect happened.
    pub(super) fn charged(&self, key: &str, token: u64) {
        self.about(key, |facts| facts.charged.push(token));
    }

    /// What the gateway was about to say, it says no more.
    pub(super) fn gateway_died(&self) {
        self.seen().operations.values_mut().for_each(|facts| facts.is_completing = false);
    }

    pub(super) fn phase(&self, key: &str) -> Option<Phase> {
        let seen = self.seen();
        let facts = seen.operations.get(key)?;
        let read = facts.id.and_then(|id| self.memory.get(id).now_or_never());
        let record = read.and_then(|answer| answer.expect("the memory store answers"));
        facts.phase(record.as_ref(), self.clock.now())
    }

    /// Operations that are in some phase; of one client, those it waits for.
    pub(super) fn phases(&self, client: Option<usize>) -> Vec<(String, Phase)> {
        let concerns = |facts: &Facts| match client {
            Some(client) => facts.asks.values().any(|(whose, _)| *whose == client),
            None => true,
        };
        let of_interest = |seen: &Seen| -> Vec<String> {
            let concerned = seen.operations.iter().filter(|(_, facts)| concerns(facts));
            concerned.map(|(key, _)| key.clone()).collect()
        };
        let keys = of_interest(&self.seen());
        keys.into_iter().filter_map(|key| self.phase(&key).map(|phase| (key, phase))).collect()
    }

    /// Counts a trouble that begins now for all it concerns.
    pub(super) fn begins(&self, trouble: Trouble, client: Option<usize>) {
        for (_, phase) in self.phases(client) {
            self.seen().counts.hit(trouble, phase);
        }
    }

    /// Counts a trouble of one operation.
    pub(super) fn meets(&self, trouble: Trouble, key: &str) {
        if let Some(phase) = self.phase(key) {
            self.seen().counts.hit(trouble, phase);
        }
    }

    /// Which operation the call to the store is about that is just being made.
    pub(super) fn called(&self) -> Option<String> {
        self.seen().calling.take()
    }
}

/// The store as the gateway has it.
pub(super) struct Watched {
    pub(super) inner: Arc<dyn EffectStore>,
    pub(super) watch: Watch,
}

impl Watched {
    /// Makes a call about an operation. Its first step runs before anybody else does anything, so what
    /// befalls it is about this operation.
    async fn call<T>(&self, id: OperationId, call: Pending<'_, T>) -> Result<T, semel::Error> {
        let key = self.watch.key_of(id);
        self.watch.seen().calling = key;
        call.await
    }
}

impl EffectStore for Watched {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim<'a>(&'a self, request: &'a Request) -> Pending<'a, Claim> {
        Box::pin(async move {
            let (key, id) = (request.operation.key().as_str(), request.operation.id());
            self.watch.about(key, |facts| {
                facts.id = Some(id);
                facts.claims += 1;
            });
            let _under_way = self.watch.under_way(key, What::Claim);
            let answer = self.call(id, self.inner.claim(request)).await?;
            self.watch.about(key, |facts| facts.heard.push(request.nonce));
            Ok(answer)
        })
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        Box::pin(self.call(renew.holder.operation, self.inner.renew(renew)))
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        Box::pin(async move {
            let id = complete.holder.operation;
            let key = self.watch.key_of(id).expect("what is completed was claimed");
            self.watch.about(&key, |facts| facts.is_completing = true);
            let answer = self.call(id, self.inner.complete(complete)).await?;
            self.watch.about(&key, |facts| {
                facts.is_completing = false;
                facts.stored_at = facts.stored_at.or_else(turmoil::sim_elapsed);
            });
            Ok(answer)
        })
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        Box::pin(self.call(release.holder.operation, self.inner.release(release)))
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        Box::pin(self.call(mark.operation(), self.inner.mark_unknown(mark)))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        Box::pin(async move {
            let key = self.watch.key_of(settle.operation).expect("what is settled was claimed");
            self.watch.about(&key, |facts| facts.settlements += 1);
            let _under_way = self.watch.under_way(&key, What::Settlement);
            self.call(settle.operation, self.inner.settle(settle)).await
        })
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        self.inner.purge(purge)
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        self.inner.purge_subject(subject, nonce, note, limit)
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        Box::pin(self.call(operation, self.inner.get(operation)))
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        self.inner.list(filter, after, limit)
    }

    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        self.inner.sweep(limit, unknown_kept)
    }

    fn status(&self) -> Pending<'_, Status> {
        self.inner.status()
    }

    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark> {
        self.inner.acknowledge_restore(by)
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        self.inner.rotate_hash_key()
    }
}
