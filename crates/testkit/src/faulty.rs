//! A store that loses, delays, repeats and refuses calls on purpose.
//!
//! It stands between [`Once`](semel_core::Once) and a real store. What it answers is never wrong, only
//! late, lost or doubled, as a network would do it; what it did is known to the test alone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::store::{Capabilities, Filter, Mark, Page, Pending, Status, SubjectPurge, SweepReport};
use semel_core::verbs::{
    Change, Complete, Completion, Finding, MarkUnknown, Purge, Release, Renew, Renewal, Settle,
};
use semel_core::{EffectStore, Nonce, OperationId, Record, Token};

use crate::twin::{Deed, Reply};

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is passed on.
    None,
    /// Refused before it reached the store.
    Refuse,
    /// Applied, and the answer is lost.
    LoseAnswer,
    /// Applied, and by that it was seen that the store had gone back.
    WentBack,
    /// Not applied, and the caller cannot know.
    LoseCall,
    /// Passed on after a while.
    Delay(Duration),
    /// The call goes through at once, and its answer comes so much later.
    DelayAnswer(Duration),
    /// Applied two times, one right after the other; the second answer is given.
    Twice,
    /// Applied, and a copy of it once more, when [`FaultyStore::deliver`] is called or with some
    /// later call.
    Late,
    /// Never answered, never applied.
    Hang,
    /// Applied, never answered.
    HangAfter,
}

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A claim.
    Claim,
    /// A renewal.
    Renew,
    /// A completion.
    Complete,
    /// A release.
    Release,
    /// A mark of unknown.
    MarkUnknown,
    /// Everything else.
    Other,
}

/// Says what happens to the next call.
pub type Plan = Box<dyn FnMut(Verb) -> Fault + Send>;

/// The decorator. It begins with a plan and can be given others, or none.
pub struct FaultyStore {
    inner: Arc<dyn EffectStore>,
    plan: Mutex<Plan>,
    late: Mutex<Vec<Deed>>,
    calls: [AtomicU64; 6],
    ghosts: AtomicU64,
    outcome_bytes_max: AtomicUsize,
}

impl FaultyStore {
    /// Around a store, after a plan.
    pub fn new(inner: Arc<dyn EffectStore>, plan: impl FnMut(Verb) -> Fault + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            inner,
            plan: Mutex::new(Box::new(plan)),
            late: Mutex::default(),
            calls: Default::default(),
            ghosts: AtomicU64::new(0),
            outcome_bytes_max: AtomicUsize::new(usize::MAX),
        })
    }

    /// Faults of one verb in this order, then none; other verbs are left alone.
    pub fn scripted(inner: Arc<dyn EffectStore>, verb: Verb, faults: &[Fault]) -> Arc<Self> {
        let mut faults: Vec<Fault> = faults.iter().rev().copied().collect();
        Self::new(
            inner,
            move |call| if call == verb { faults.pop().unwrap_or(Fault::None) } else { Fault::None },
        )
    }

    /// From now on after another plan.
    pub fn plan(&self, plan: impl FnMut(Verb) -> Fault + Send + 'static) {
        *lock(&self.plan) = Box::new(plan);
    }

    /// From now on without faults. What hangs goes on hanging.
    pub fn heal(&self) {
        self.plan(|_| Fault::None);
    }

    /// The store behind.
    pub fn inner(&self) -> &Arc<dyn EffectStore> {
        &self.inner
    }

    /// From now on no outcome above so many bytes is taken, ever.
    pub fn outcome_bytes_max(&self, bytes: usize) {
        self.outcome_bytes_max.store(bytes, Ordering::SeqCst);
    }

    /// How many calls of this verb came.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.calls[verb as usize].load(Ordering::SeqCst)
    }

    /// Late copies of claims that were granted: leases nobody knows of.
    pub fn ghosts(&self) -> u64 {
        self.ghosts.load(Ordering::SeqCst)
    }

    /// Applies all late copies now.
    pub async fn deliver(&self) {
        loop {
            let copy = lock(&self.late).pop();
            let Some(copy) = copy else { return };
            if let Reply::Claim(Claim::Granted(_)) = copy.perform(self.inner.clone()).await {
                self.ghosts.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn check_size(&self, verb: Verb, outcome: &[u8]) -> Result<(), Error> {
        if outcome.len() <= self.outcome_bytes_max.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.calls[verb as usize].fetch_add(1, Ordering::SeqCst);
        Err(Error::new(
            Kind::TooLarge,
            format!("{verb:?}: the outcome is too large for this store, as planned"),
        ))
    }

    async fn through<'a, T>(
        &'a self,
        verb: Verb,
        deed: Option<Deed>,
        call: impl Fn() -> Pending<'a, T> + Send + Sync,
    ) -> Result<T, Error> {
        self.calls[verb as usize].fetch_add(1, Ordering::SeqCst);
        let fault = lock(&self.plan)(verb);
        let waiting = lock(&self.late).len();
        if waiting > 2 {
            self.deliver().await;
        }
        let away = |what: &str| Error::new(Kind::Unreachable, format!("{verb:?}: {what}, as planned"));
        match fault {
            Fault::None => call().await,
            Fault::Refuse => Err(away("the store is away")),
            Fault::LoseAnswer => {
                let _applied = call().await?;
                Err(away("the answer is lost").maybe_applied())
            }
            Fault::WentBack => {
                let _applied = call().await?;
                Err(Error::new(Kind::WentBack, format!("{verb:?}: the store went back, as planned"))
                    .maybe_applied())
            }
            Fault::LoseCall => Err(away("the call is lost").maybe_applied()),
            Fault::Delay(wait) => {
                tokio::time::sleep(wait).await;
                call().await
            }
            Fault::DelayAnswer(wait) => {
                let answer = call().await;
                tokio::time::sleep(wait).await;
                answer
            }
            Fault::Twice => {
                let _first = call().await?;
                call().await
            }
            Fault::Late => {
                lock(&self.late).extend(deed);
                call().await
            }
            Fault::Hang => std::future::pending().await,
            Fault::HangAfter => {
                let _applied = call().await?;
                std::future::pending().await
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EffectStore for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim<'a>(&'a self, request: &'a Request) -> Pending<'a, Claim> {
        let deed = Some(Deed::Claim(request.clone()));
        Box::pin(self.through(Verb::Claim, deed, || self.inner.claim(request)))
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        let deed = Some(Deed::Renew(renew.clone()));
        Box::pin(self.through(Verb::Renew, deed, || self.inner.renew(renew)))
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        if let Err(refused) = self.check_size(Verb::Complete, &complete.outcome) {
            return Box::pin(async { Err(refused) });
        }
        let deed = Some(Deed::Complete(complete.clone()));
        Box::pin(self.through(Verb::Complete, deed, || self.inner.complete(complete)))
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        let deed = Some(Deed::Release(release.clone()));
        Box::pin(self.through(Verb::Release, deed, || self.inner.release(release)))
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        let deed = Some(Deed::MarkUnknown(mark.clone()));
        Box::pin(self.through(Verb::MarkUnknown, deed, || self.inner.mark_unknown(mark)))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        if let Finding::Done(outcome) = &settle.finding
            && let Err(refused) = self.check_size(Verb::Other, outcome)
        {
            return Box::pin(async { Err(refused) });
        }
        let deed = Some(Deed::Settle(settle.clone()));
        Box::pin(self.through(Verb::Other, deed, || self.inner.settle(settle)))
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        let deed = Some(Deed::Purge(purge.clone()));
        Box::pin(self.through(Verb::Other, deed, || self.inner.purge(purge)))
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        let call = move || self.inner.purge_subject(subject, nonce, note, limit);
        Box::pin(self.through(Verb::Other, None, call))
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        Box::pin(self.through(Verb::Other, None, move || self.inner.get(operation)))
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        Box::pin(self.through(Verb::Other, None, move || self.inner.list(filter, after, limit)))
    }

    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        Box::pin(self.through(Verb::Other, None, move || self.inner.sweep(limit, unknown_kept)))
    }

    fn status(&self) -> Pending<'_, Status> {
        Box::pin(self.through(Verb::Other, None, || self.inner.status()))
    }

    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark> {
        Box::pin(self.through(Verb::Other, None, || self.inner.acknowledge_restore(by)))
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        Box::pin(self.through(Verb::Other, None, || self.inner.rotate_hash_key()))
    }
}
