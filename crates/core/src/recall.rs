//! Replays without asking the database: a store in front of another that remembers, for a moment, which
//! outcomes it was told.
//!
//! A retry storm asks for one outcome again and again, and a completed outcome never changes. So for a short
//! time the answer is given from memory, to the same request only. Nothing else is: who may run, what is in
//! flight and what is unknown is asked of the store underneath, always.
//!
//! What is purged through here is forgotten at once. What another process purges, a purge whose answer was lost and
//! that took effect later, what expires, and that the store went away or was restored, is noticed when the
//! moment is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::claim::{self, Claim};
use crate::clock::Timestamp;
use crate::lease::{Nonce, Token};
use crate::record::Record;
use crate::runtime::Runtime;
use crate::store::{
    Capabilities, EffectStore, Filter, Mark, Page, Pending, Status, SubjectPurge, SweepReport,
};
use crate::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use crate::{OperationId, mutant};

/// Most bytes of outcomes remembered in one moment; there are at most two moments' worth at a time.
const BYTES_MAX: usize = 32 << 20;

/// What one remembered outcome takes beside its bytes, roughly.
const ENTRY_BYTES: usize = 200;

/// A store that answers replays from memory for a moment after it was told of them.
pub struct Recalling {
    store: Arc<dyn EffectStore>,
    runtime: Arc<dyn Runtime>,
    moment: Duration,
    memory: Mutex<Memory>,
}

/// Two generations: what is remembered now, and what was in the moment before.
#[derive(Default)]
struct Memory {
    began: Duration,
    young: HashMap<OperationId, Told>,
    old: HashMap<OperationId, Told>,
    young_bytes: usize,
    /// Grows with everything that may have made an outcome untrue. An answer that was on its way meanwhile
    /// is not remembered.
    changes: u64,
}

/// An outcome, the request it belongs to, and when the store was asked for it.
struct Told {
    version: u32,
    digest: [u8; 32],
    outcome: Bytes,
    stored_at: Timestamp,
    asked: Duration,
}

impl Recalling {
    /// Remembers what `store` tells for as long as `moment`, on the runtime's clock.
    pub fn new(store: Arc<dyn EffectStore>, runtime: Arc<dyn Runtime>, moment: Duration) -> Self {
        Self { store, runtime, moment, memory: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, request: &claim::Request, now: Duration) -> Option<Claim> {
        let memory = self.lock();
        let id = request.operation.id();
        let told = memory.young.get(&id).or_else(|| memory.old.get(&id))?;
        let same = told.version == request.print.version && told.digest == request.print.digest;
        let fresh = now.saturating_sub(told.asked) < self.moment || mutant::on("recalls-for-ever");
        (fresh && (same || mutant::on("recalls-for-any-request")))
            .then(|| Claim::Completed { outcome: told.outcome.clone(), at: told.stored_at })
    }

    fn remember(&self, request: &claim::Request, answer: &Claim, asked: Duration, changes: u64) {
        let Claim::Completed { outcome, at } = answer else { return };
        // Dropped last, after the lock: thousands of outcomes may go here.
        let _forgotten;
        let mut memory = self.lock();
        if memory.changes != changes {
            return;
        }
        if asked.saturating_sub(memory.began) >= self.moment {
            memory.began = asked;
            memory.young_bytes = 0;
            let before = std::mem::take(&mut memory.young);
            _forgotten = std::mem::replace(&mut memory.old, before);
        }
        if memory.young_bytes + outcome.len() + ENTRY_BYTES <= BYTES_MAX {
            memory.young_bytes += outcome.len() + ENTRY_BYTES;
            let (version, digest) = (request.print.version, request.print.digest);
            let told = Told { version, digest, outcome: outcome.clone(), stored_at: *at, asked };
            memory.young.insert(request.operation.id(), told);
        }
    }

    /// Does what may make outcomes untrue, and forgets them before and after: an answer that was under way
    /// may be from either side of the change.
    fn forgetting<'a, T: 'a>(&'a self, change: Pending<'a, T>) -> Pending<'a, T> {
        Box::pin(async move {
            self.forget();
            // Also when nobody waits for the change any more: it may have been made.
            let _after = ForgetLater(self);
            change.await
        })
    }

    fn forget(&self) {
        if mutant::on("recalls-what-was-purged") {
            return;
        }
        let forgotten = {
            let mut memory = self.lock();
            let changes = memory.changes + 1;
            std::mem::replace(&mut *memory, Memory { changes, ..Memory::default() })
        };
        // Thousands of outcomes may go here; claims do not wait for it.
        drop(forgotten);
    }
}

/// Forgets when it is dropped.
struct ForgetLater<'a>(&'a Recalling);

impl Drop for ForgetLater<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

impl EffectStore for Recalling {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn claim<'a>(&'a self, request: &'a claim::Request) -> Pending<'a, Claim> {
        let asked = self.runtime.elapsed();
        if let Some(answer) = self.recall(request, asked) {
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let changes = self.lock().changes;
        Box::pin(async move {
            let answer = self.store.claim(request).await?;
            self.remember(request, &answer, asked, changes);
            Ok(answer)
        })
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        self.store.renew(renew)
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        self.store.complete(complete)
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        self.store.release(release)
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        self.store.mark_unknown(mark)
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        self.store.settle(settle)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        self.forgetting(self.store.purge(purge))
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        self.forgetting(self.store.purge_subject(subject, nonce, note, limit))
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        self.store.get(operation)
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        self.store.list(filter, after, limit)
    }

    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        self.store.sweep(limit, unknown_kept)
    }

    fn status(&self) -> Pending<'_, Status> {
        self.store.status()
    }

    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark> {
        self.forgetting(self.store.acknowledge_restore(by))
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        self.store.rotate_hash_key()
    }
}
