//! Running an operation once: claim → run → store → replay.
//!
//! This screen is the product. The claim decides who runs ([`admit`](crate::admit)); the effect
//! runs in a task of its own, so that a caller who goes away stops nothing; its end is stored before
//! anybody hears of it ([`finish`](crate::finish)).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, poll_immediate, select};
use tokio::sync::{Semaphore, oneshot};

use crate::admit::{Admission, Call, Grant, no_answer};
use crate::answer::{Answer, Ending, Origin, Refusal};
use crate::attempt::{Attempt, Standing};
use crate::error::{Error, Kind};
use crate::fingerprint::{Fingerprint, Fingerprinter};
use crate::policy::DEFAULTS;
use crate::record::State;
use crate::runtime::{Runtime, within};
use crate::store::EffectStore;
use crate::tally::{Calling, Running, Tally, Track, Waits};
use crate::verbs::{Release, Renew, Renewal};
use crate::wait::Waiters;
use crate::{Key, Policy, Scope, mutant};

/// Makes effects happen once. Clones share everything.
#[derive(Clone)]
pub struct Once(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn EffectStore>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) waiters: Waiters,
    pub(crate) tally: Tally,
    pub(crate) track: Track,
    /// Most operations under way at a time.
    operations_max: AtomicUsize,
    /// Looks of those who found no place.
    looks: Semaphore,
    /// A few at a time: when the store comes back, completions must not queue behind them.
    pub(crate) withdrawals: Semaphore,
}

/// Claims withdrawn at the same time.
const WITHDRAWALS_AT_ONCE: usize = 32;

/// Records looked at together for those who found no place; beyond it they are turned away unseen.
const LOOKS_AT_ONCE: usize = 4;

/// One in so many places may be held by a duplicate that waits for another attempt.
const WAITERS_SHARE: usize = 2;

impl Once {
    /// Over a store and a runtime.
    pub fn new(store: Arc<dyn EffectStore>, runtime: Arc<dyn Runtime>) -> Self {
        let (waiters, tally, track) = Default::default();
        let (looks, withdrawals) = (Semaphore::new(LOOKS_AT_ONCE), Semaphore::new(WITHDRAWALS_AT_ONCE));
        let operations_max = AtomicUsize::new(usize::MAX);
        Self(Arc::new(Inner { store, runtime, waiters, tally, track, operations_max, looks, withdrawals }))
    }

    /// Lets no more than `max` operations be under way at a time: what runs, also for callers who went away, what
    /// ended and is not stored yet, and what asks whether it may run. Beyond it nothing new is claimed or run
    /// ([`Refusal::TooManyOperations`]); what has completed is replayed, as far as a few looks at a time
    /// into the store allow. Half of the places may be held by duplicates that wait; further ones hear
    /// [`Refusal::InFlight`] at once. Unlimited unless set; all clones share it.
    #[must_use]
    pub fn operations_max(self, max: usize) -> Self {
        self.0.operations_max.store(max, Ordering::Relaxed);
        self
    }

    /// Runs `effect` if this operation has not run, and otherwise answers as it did.
    ///
    /// # Cancellation
    /// Safe. A dropped call stops nothing that began: the effect runs on and its outcome is
    /// stored. A claim that was still on its way is withdrawn.
    pub async fn run<Effect, Work>(
        &self,
        scope: Scope,
        key: Key,
        fingerprint: Fingerprint,
        policy: &Policy,
        effect: Effect,
    ) -> Result<Answer, Refusal>
    where
        Effect: FnOnce(Attempt) -> Work + Send + 'static,
        Work: Future<Output: Into<Ending>> + Send + 'static,
    {
        let mut call = Call::new(scope, key, fingerprint, policy.clone());
        let Some(calling) = self.0.place() else { return Box::pin(self.0.without_place(call)).await };
        if policy.wants_subject_key() {
            // Before the claim: nothing may run whose outcome could not be sealed.
            call.key = match Box::pin(self.0.subject_key(&call)).await {
                Ok(key) => key,
                Err(_) if mutant::on("runs-without-its-subjects-key") => None,
                Err(error) => return Box::pin(self.0.without_key(&call, &error)).await,
            };
        }
        match self.0.admit(&call).await? {
            Admission::Replay(outcome) => Ok(Answer { outcome, origin: Origin::Replayed }),
            Admission::Run(grant) if self.0.is_over(grant) && !mutant::on("stale-grant-runs") => {
                // Others may have called it unknown meanwhile, and settled it. Nothing ran here.
                tracing::warn!(operation = %call.operation, "a lease came too late to begin; it is given back");
                self.0.give_back(&call, grant, calling.stay());
                Err(self.0.in_flight(&call))
            }
            Admission::Run(grant) => self.launch(call, Some(grant), effect, calling.stay()).await,
            Admission::Unprotected => self.launch(call, None, effect, calling.stay()).await,
        }
    }

    /// For a caller who could not even make the fingerprint, because the store failed with `error`:
    /// what the policy says about an outage. Under `closed` nothing runs; under `open` the effect
    /// runs unprotected, and the store is not asked.
    ///
    /// # Cancellation
    /// Safe. A dropped call stops nothing that began.
    pub async fn run_without_store<Effect, Work>(
        &self,
        scope: Scope,
        key: Key,
        fingerprint: Fingerprint,
        policy: &Policy,
        error: &Error,
        effect: Effect,
    ) -> Result<Answer, Refusal>
    where
        Effect: FnOnce(Attempt) -> Work + Send + 'static,
        Work: Future<Output: Into<Ending>> + Send + 'static,
    {
        let call = Call::new(scope, key, fingerprint, policy.clone());
        let Some(calling) = self.0.place() else { return Err(self.0.turn_away(&call)) };
        let running = calling.stay();
        self.0.outage(&call, error)?;
        self.launch(call, None, effect, running).await
    }

    async fn launch<Effect, Work>(
        &self,
        call: Call,
        grant: Option<Grant>,
        effect: Effect,
        running: Running,
    ) -> Result<Answer, Refusal>
    where
        Effect: FnOnce(Attempt) -> Work + Send + 'static,
        Work: Future<Output: Into<Ending>> + Send + 'static,
    {
        let (tell, hear) = oneshot::channel();
        let inner = self.0.clone();
        let task = async move {
            let ending = inner.drive(&call, grant, effect).await;
            inner.finish(&call, grant, ending, tell).await;
            inner.waiters.wake(call.operation.id());
            drop(running);
        };
        let mut task = Box::pin(task);
        if mutant::on("dies-with-its-caller") {
            task.await;
        } else if poll_immediate(&mut task).await.is_none() {
            // Not done at once: from here on it runs by itself, whatever becomes of the caller.
            self.0.runtime.spawn(task);
        }
        // The task ends without telling only if its runtime was torn down: then nobody knows.
        hear.await.unwrap_or(Err(Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_max }))
    }
}

impl Inner {
    /// A place for one more operation, if there is one.
    fn place(&self) -> Option<Calling<'_>> {
        self.track.operation(self.operations_max.load(Ordering::Relaxed))
    }

    fn turn_away(&self, call: &Call) -> Refusal {
        Tally::count(&self.tally.turned_away);
        Refusal::TooManyOperations { retry_after: self.tally.retry_after(call.operation.scope().route()) }
    }

    /// A place to wait for another attempt, if there is one. Whoever waits holds a place, and those who wait for
    /// one slow operation must not take all of them.
    pub(crate) fn place_to_wait(&self) -> Option<Waits<'_>> {
        self.track.wait(self.operations_max.load(Ordering::Relaxed) / WAITERS_SHARE)
    }

    /// All places are taken. What began before is told as it stands; nothing new begins, and nothing that does not
    /// look completed is claimed.
    async fn without_place(self: &Arc<Self>, mut call: Call) -> Result<Answer, Refusal> {
        // The store is needed for the renewals of what runs: a storm must not queue up before them.
        let look = self.looks.try_acquire();
        if look.is_err() && !mutant::on("looks-unlimited") {
            return Err(self.turn_away(&call));
        }
        call.has_place = false;
        let calling = self.track.call();
        let patience = call.policy.settings().store_patience;
        let record = within(&*self.runtime, patience, self.store.get(call.operation.id())).await;
        let record = match record.unwrap_or_else(|_| Err(no_answer(patience))) {
            Ok(record) => record,
            Err(_) if mutant::on("failed-look-is-none") => None,
            Err(error) => return Err(self.unavailable(&call, &error)),
        };
        match record.filter(|_| !mutant::on("no-replay-without-place")) {
            Some(record) if record.state == State::Completed => match self.admit(&call).await? {
                Admission::Replay(outcome) => return Ok(Answer { outcome, origin: Origin::Replayed }),
                // It had expired by the store's clock, which only a claim asks.
                Admission::Run(_) if mutant::on("lease-without-place-kept") => {}
                Admission::Run(grant) => self.give_back(&call, grant, calling.stay()),
                Admission::Unprotected => {}
            },
            Some(record) if record.state == State::InProgress && call.is_of(&record) => {
                return Err(self.in_flight(&call));
            }
            Some(record) if record.state == State::Unknown && call.is_of(&record) => {
                Tally::count(&self.tally.unknown);
                return Err(Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_max });
            }
            _ => {}
        }
        Err(self.turn_away(&call))
    }

    /// Whether a lease had lapsed, by our own clock, before anything began: its answer came late, or this
    /// process was stopped.
    fn is_over(&self, grant: Grant) -> bool {
        self.runtime.elapsed() >= grant.sent + grant.lease.granted
    }

    fn give_back(self: &Arc<Self>, call: &Call, grant: Grant, running: Running) {
        let (inner, nonce, id) = (self.clone(), call.nonce, call.operation.id());
        self.runtime.spawn(Box::pin(async move {
            let release = Release { holder: grant.lease.holder };
            inner.insist(nonce, || inner.store.release(&release)).await;
            inner.waiters.wake(id);
            drop(running);
        }));
    }

    /// Runs the effect, keeps its lease, and survives its panic.
    async fn drive<Effect, Work>(&self, call: &Call, grant: Option<Grant>, effect: Effect) -> Ending
    where
        Effect: FnOnce(Attempt) -> Work,
        Work: Future<Output: Into<Ending>>,
    {
        let deadline = grant.map_or(Duration::MAX, |grant| grant.sent + grant.lease.granted);
        let standing = Arc::new(Standing::until(deadline));
        let lease = grant.map(|grant| grant.lease);
        let attempt = Attempt::new(
            call.operation.clone(),
            lease,
            grant.map(|grant| grant.sent),
            self.runtime.clone(),
            standing.clone(),
        );
        let work = pin!(AssertUnwindSafe(async { effect(attempt).await.into() }).catch_unwind());
        let renewals = pin!(self.keep(grant, &standing));
        match select(work, renewals).await {
            Either::Left((Ok(ending), _)) => ending,
            Either::Left((Err(panic), _)) if mutant::on("panic-releases") => {
                Ending::NothingHappened(crate::Outcome::text(panic_text(&*panic)))
            }
            Either::Left((Err(panic), _)) => Ending::Unknown(format!("panicked: {}", panic_text(&*panic))),
            Either::Right((never, _)) => match never {},
        }
    }

    /// Renews every third of the lease, for as long as it is polled. Says so when the lease is lost.
    async fn keep(&self, grant: Option<Grant>, standing: &Standing) -> std::convert::Infallible {
        let Some(Grant { lease, .. }) = grant else { return std::future::pending().await };
        let renew = Renew { holder: lease.holder, lease: lease.granted };
        let third = lease.granted / 3;
        let mut sent = self.runtime.elapsed();
        loop {
            // Every third of the lease, and never past its end: the effect must hear of that in time.
            let next = if standing.is_lost() { sent + third } else { standing.deadline().min(sent + third) };
            let pause = next.saturating_sub(self.runtime.elapsed());
            self.runtime.sleep(pause.max(Duration::from_millis(1))).await;
            sent = self.runtime.elapsed();
            if sent >= standing.deadline() && !standing.is_lost() {
                standing.lose();
            }
            if mutant::on("never-renews") {
                continue;
            }
            // A store that hangs must not keep the next renewal, or the news of the loss, from coming.
            let left = standing.deadline().saturating_sub(sent);
            let patience = if standing.is_lost() { third } else { left.min(third) };
            match within(&*self.runtime, patience, self.store.renew(&renew))
                .await
                .unwrap_or_else(|_| Err(Error::new(Kind::TimedOut, "a renewal was not answered in time")))
            {
                Ok(Renewal::Kept { .. }) => {
                    standing.extend(sent + lease.granted);
                }
                Ok(Renewal::Lost(stale)) => {
                    tracing::warn!(operation = %lease.holder.operation, token = %lease.holder.token, ?stale, "lease lost");
                    standing.lose();
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::warn!(operation = %lease.holder.operation, %error, "lease not renewed");
                    if self.runtime.elapsed() >= standing.deadline() {
                        standing.lose();
                    }
                }
            }
        }
    }
}

/// What else a holder of `Once` needs.
impl Once {
    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn EffectStore> {
        &self.0.store
    }

    /// Spawning, sleeping and monotonic time.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.runtime
    }

    /// Makes fingerprints with the store's keys. Ask again after a rotation.
    pub async fn fingerprinter(&self) -> Result<Fingerprinter, Error> {
        let keys = self.0.store.status().await?.hash_keys;
        Fingerprinter::new(keys).map_err(|problem| {
            Error::new(Kind::Damaged, "the store's fingerprint keys cannot be used").because(problem)
        })
    }

    /// How many operations are under way; see [`Once::operations_max`].
    pub fn operations(&self) -> usize {
        self.0.track.operations()
    }

    /// Counts of what was decided since the start.
    pub fn tally(&self) -> &Tally {
        &self.0.tally
    }

    /// Waits until nothing runs and nothing waits to be stored, or until `patience` is over.
    /// Returns how much is left. Stop taking new work first.
    pub async fn drain(&self, patience: Duration) -> usize {
        let timer = self.0.runtime.sleep(patience);
        select(pin!(self.0.track.empty()), timer).await;
        self.0.track.running()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}
