//! Who may run: asks the store until it has answered, and turns its answer into a decision.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;

use crate::answer::Refusal;
use crate::backoff::Backoff;
use crate::claim::{Claim, Request};
use crate::error::{Error, Kind};
use crate::execute::Inner;
use crate::fingerprint::{Changes, Comparison, Fingerprint};
use crate::lease::{Lease, Nonce};
use crate::outcome::{Body, Outcome, Unreadable};
use crate::policy::{DEFAULTS, Outage};
use crate::record::Record;
use crate::runtime::within;
use crate::subject::NotRead;
use crate::tally::Tally;
use crate::verbs::Release;
use crate::{Key, Operation, Policy, Scope, mutant, seal, subject};

/// One call of `run`, with the nonce it keeps through every repetition.
pub(crate) struct Call {
    pub(crate) operation: Arc<Operation>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) policy: Policy,
    pub(crate) nonce: Nonce,
    /// The key of its subject, where there is one; there before anything runs.
    pub(crate) key: Option<Arc<subject::Key>>,
    /// Whether it has a place. Without one it waits for nobody, and no outage lets it run.
    pub(crate) has_place: bool,
}

/// A lease, and when on our own monotonic clock it was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) sent: Duration,
}

/// The decision about a call.
pub(crate) enum Admission {
    Run(Grant),
    Unprotected,
    Replay(Outcome),
}

impl Call {
    pub(crate) fn new(scope: Scope, key: Key, fingerprint: Fingerprint, policy: Policy) -> Self {
        let operation = Arc::new(Operation::new(scope, key));
        Self { operation, fingerprint, policy, nonce: Nonce::random(), key: None, has_place: true }
    }

    /// Whether a record is of this request, not of another one under its key.
    pub(crate) fn is_of(&self, record: &Record) -> bool {
        let print = self.fingerprint.under(record.print.version);
        print.is_some_and(|print| print.digest == record.print.digest)
    }

    fn request(&self) -> Request {
        Request {
            operation: self.operation.clone(),
            nonce: self.nonce,
            print: self.fingerprint.current().clone(),
            terms: self.policy.terms(),
            subject: self.policy.settings().subject.clone(),
        }
    }
}

/// Most tasks under way at which a claim is still withdrawn; beyond it, it is left to lapse.
const WITHDRAWALS_MAX: usize = 20_000;

/// A claim on its way. Dropped while its answer is still owed, it is withdrawn.
struct Asking<'a> {
    inner: &'a Arc<Inner>,
    request: Request,
    owed: bool,
    /// When the copy that may have been applied was first sent: a lease is counted from there.
    sent: Duration,
}

impl Asking<'_> {
    /// Sends the claim. Ends early, with the answer still owed, when `patience` is over.
    async fn ask(&mut self, patience: Duration) -> Result<Claim, Error> {
        let owed_before = std::mem::replace(&mut self.owed, true);
        if !owed_before {
            self.sent = self.inner.runtime.elapsed();
        }
        if mutant::on("retry-with-a-new-nonce") {
            self.request.nonce = Nonce::random();
        }
        let asked = self.inner.store.claim(&self.request);
        let Ok(answer) = within(&*self.inner.runtime, patience, asked).await else {
            return Err(no_answer(patience).maybe_applied());
        };
        self.owed = match &answer {
            // Unknown may be what others made of our own claim, applied by a copy whose answer was lost.
            Ok(Claim::Unknown { .. }) => owed_before,
            Ok(_) => false,
            Err(error) => owed_before || error.outcome_is_unknown(),
        };
        answer
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.owed && self.inner.track.running() >= WITHDRAWALS_MAX {
            tracing::error!(operation = %self.request.operation, "too many claims to withdraw; this one is left to lapse");
        } else if self.owed && !mutant::on("ambiguous-claim-left") {
            let inner = self.inner.clone();
            let request = self.request.clone();
            let running = inner.track.enter();
            self.inner.runtime.spawn(Box::pin(async move {
                inner.withdraw(request).await;
                drop(running);
            }));
        }
    }
}

impl Inner {
    pub(crate) async fn admit(self: &Arc<Self>, call: &Call) -> Result<Admission, Refusal> {
        if let Some(weakness) = call.operation.key().weakness() {
            Tally::count(&self.tally.weak_keys);
            tracing::warn!(operation = %call.operation, ?weakness, "the key looks guessable");
        }
        let settings = call.policy.settings();
        let mut asking = Asking { inner: self, request: call.request(), owed: false, sent: Duration::ZERO };
        let mut backoff = Backoff::new(call.nonce);
        let (mut waiting, mut _waits) = (None, None);
        let (mut start, mut trouble) = (None::<Duration>, None::<Duration>);
        loop {
            let ring = waiting.as_ref().and_then(crate::wait::Waiting::ring);
            let answer = asking.ask(settings.store_patience).await;
            let start = *start.get_or_insert(asking.sent);
            if answer.is_ok() {
                trouble = None;
            }
            match answer {
                Ok(Claim::Granted(lease)) => {
                    Tally::count(&self.tally.granted);
                    return Ok(Admission::Run(Grant { lease, sent: asking.sent }));
                }
                Ok(Claim::InFlight { .. }) => {
                    let left = settings.wait.saturating_sub(self.runtime.elapsed() - start);
                    if left.is_zero() || !call.has_place {
                        return Err(self.in_flight(call));
                    }
                    match ring {
                        // Hang the bell first, then look once more: the end may have come between.
                        None => {
                            _waits = Some(self.place_to_wait().ok_or_else(|| self.in_flight(call))?);
                            waiting = Some(self.waiters.listen(call.operation.id()));
                        }
                        Some(ring) => {
                            let pause = self.runtime.sleep(backoff.next_pause().min(left));
                            select(pin!(ring), pause).await;
                        }
                    }
                }
                Ok(Claim::OtherVersion { version }) => match call.fingerprint.under(version) {
                    Some(print) => asking.request.print = print.clone(),
                    None if version > call.fingerprint.current().version => {
                        let retry_after = self.tally.retry_after(call.operation.scope().route());
                        return Err(Refusal::KeyNotLoaded { version, retry_after });
                    }
                    None => return Err(Refusal::Incomparable { version }),
                },
                Ok(Claim::Completed { outcome, .. }) if seal::subject_key(&outcome).is_some() => {
                    // Whoever waited may hold a key that was forgotten meanwhile.
                    let trusted = waiting.is_none() || mutant::on("waiter-reads-what-was-forgotten");
                    let in_hand = call.key.as_deref().filter(|_| trusted);
                    return Box::pin(self.replay_by_key(call, &outcome, in_hand)).await;
                }
                Ok(claim) => return self.judge(call, claim),
                Err(error) => {
                    let now = self.runtime.elapsed();
                    let spent = now - *trouble.get_or_insert(asking.sent);
                    if !is_away(&error) || spent >= settings.store_patience {
                        return self.outage(call, &error);
                    }
                    self.runtime.sleep(backoff.next_pause()).await;
                }
            }
        }
    }

    /// The claim was answered, and somebody was there before.
    fn judge(&self, call: &Call, claim: Claim) -> Result<Admission, Refusal> {
        match claim {
            Claim::Completed { outcome, .. } => self.replay(call, &outcome),
            Claim::Unknown { .. } => {
                Tally::count(&self.tally.unknown);
                Err(Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_max })
            }
            Claim::Mismatch { stored } => {
                Tally::count(&self.tally.mismatched);
                let changes = match call.fingerprint.compare(&stored) {
                    Comparison::Different(changes) => changes,
                    _ => Changes::default(),
                };
                tracing::info!(operation = %call.operation, ?changes, "key used with another request");
                Err(Refusal::Mismatch(changes))
            }
            Claim::Purged { .. } => Err(Refusal::Purged),
            Claim::WentBack { .. } => {
                let error = Error::new(Kind::WentBack, "the store gave a token it had given before");
                self.outage(call, &error)
            }
            // Our own nonce cannot have been released while we hold it; tell the client to come back.
            _ => Err(self.in_flight(call)),
        }
    }

    pub(crate) fn replay(&self, call: &Call, stored: &bytes::Bytes) -> Result<Admission, Refusal> {
        Tally::count(&self.tally.replayed);
        self.told(call, call.policy.open(stored, call.operation.id()))
    }

    fn told(&self, call: &Call, read: Result<Outcome, Unreadable>) -> Result<Admission, Refusal> {
        match read {
            Ok(Outcome { status, body: Body::NotKept { .. }, .. }) => Err(Refusal::BodyNotKept { status }),
            Ok(outcome) => Ok(Admission::Replay(outcome)),
            Err(_) if mutant::on("unreadable-runs-again") => Ok(Admission::Unprotected),
            Err(why) => {
                tracing::error!(operation = %call.operation, %why, "a stored outcome cannot be read");
                Err(Refusal::Unreadable(why))
            }
        }
    }

    /// What was sealed with a subject's key. A key that is gone is one thing, a place that does not answer
    /// another: only the first is for good.
    pub(crate) async fn replay_by_key(
        &self,
        call: &Call,
        stored: &bytes::Bytes,
        in_hand: Option<&subject::Key>,
    ) -> Result<Admission, Refusal> {
        let id = call.operation.id();
        let in_hand = in_hand.filter(|key| seal::subject_key(stored) == Some(key.id()));
        let read = match in_hand {
            Some(key) => seal::open_with(stored, id, key),
            None => {
                let ask = || async {
                    match call.policy.read(stored, id).await {
                        Err(NotRead::Away(error)) if !mutant::on("key-place-away-is-unreadable") => {
                            Err(error)
                        }
                        Err(NotRead::Away(_)) => Ok(Err(Unreadable::Damaged { what: "nobody knows" })),
                        Err(NotRead::Unreadable(why)) => Ok(Err(why)),
                        Ok(outcome) => Ok(Ok(outcome)),
                    }
                };
                self.of_the_key_place(call, ask).await.map_err(|error| self.no_key(call, &error))?
            }
        };
        Tally::count(&self.tally.replayed);
        self.told(call, read)
    }

    /// The key of the call's subject, before anything is claimed.
    pub(crate) async fn subject_key(&self, call: &Call) -> Result<Option<Arc<subject::Key>>, Error> {
        let key = self.of_the_key_place(call, || call.policy.subject_key()).await?;
        Ok(key.map(Arc::new))
    }

    /// Asks the key place until it has answered, or the caller's patience is over.
    async fn of_the_key_place<T, Asked>(&self, call: &Call, ask: impl Fn() -> Asked) -> Result<T, Error>
    where
        Asked: Future<Output = Result<T, Error>>,
    {
        let patience = call.policy.settings().store_patience;
        let (start, mut backoff) = (self.runtime.elapsed(), Backoff::new(call.nonce));
        loop {
            let left = patience.saturating_sub(self.runtime.elapsed() - start);
            let error = match within(&*self.runtime, left, pin!(ask())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if error.is_retryable() || error.outcome_is_unknown() => error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let sentence = format!("the place of subjects' keys did not answer within {patience:?}");
                    return Err(Error::new(Kind::TimedOut, sentence));
                }
            };
            if self.runtime.elapsed() - start >= patience {
                return Err(error);
            }
            self.runtime.sleep(backoff.next_pause()).await;
        }
    }

    /// Nothing runs without its key, whatever the policy says about outages of the store.
    pub(crate) fn no_key(&self, call: &Call, error: &Error) -> Refusal {
        Tally::count(&self.tally.unavailable);
        tracing::warn!(operation = %call.operation, %error, "the key of its subject cannot be had; nothing was run");
        Refusal::StoreUnavailable { retry_after: self.tally.retry_after(call.operation.scope().route()) }
    }

    pub(crate) fn in_flight(&self, call: &Call) -> Refusal {
        Tally::count(&self.tally.in_flight);
        Refusal::InFlight { retry_after: self.tally.retry_after(call.operation.scope().route()) }
    }

    /// The store did not answer in time, or must not be believed.
    pub(crate) fn outage(&self, call: &Call, error: &Error) -> Result<Admission, Refusal> {
        let open = call.policy.settings().outage == Outage::Open || mutant::on("outage-runs");
        if open && is_away(error) && (call.has_place || mutant::on("runs-without-place")) {
            Tally::count(&self.tally.unprotected);
            tracing::warn!(operation = %call.operation, %error, "the store is away; running unprotected as declared");
            return Ok(Admission::Unprotected);
        }
        Err(self.unavailable(call, error))
    }

    /// The store did not answer in time, or must not be believed, and nothing ran for that.
    pub(crate) fn unavailable(&self, call: &Call, error: &Error) -> Refusal {
        Tally::count(&self.tally.unavailable);
        tracing::warn!(operation = %call.operation, %error, "the store is away; nothing was run");
        Refusal::StoreUnavailable { retry_after: self.tally.retry_after(call.operation.scope().route()) }
    }

    /// Finds out whether a claim nobody waits for any more was granted, and gives it back.
    ///
    /// Asking again with the same nonce is the only proof; and once released, a late copy of the
    /// claim is told [`Claim::Withdrawn`].
    async fn withdraw(&self, request: Request) {
        let Ok(_turn) = self.withdrawals.acquire().await else { return };
        let holder = match self.insist(request.nonce, || self.store.claim(&request)).await {
            Claim::Granted(lease) => Some(lease.holder),
            // It lapsed while the store was away, and somebody called it unknown. Nobody ran it.
            Claim::Unknown { .. } => {
                let record = self.insist(request.nonce, || self.store.get(request.operation.id())).await;
                record.filter(|record| record.nonce == request.nonce).map(|record| record.holder())
            }
            _ => None,
        };
        if let Some(holder) = holder {
            Tally::count(&self.tally.withdrawn);
            let release = Release { holder };
            self.insist(request.nonce, || self.store.release(&release)).await;
            self.waiters.wake(request.operation.id());
        }
    }
}

/// Whether the store may answer otherwise in a moment. One that answered, and must not be believed or cannot be
/// read, is no outage; and what it granted while it had gone back may not be had by asking once more.
fn is_away(error: &Error) -> bool {
    let believed = error.kind() != Kind::WentBack || mutant::on("gone-back-is-away");
    believed && (error.is_retryable() || error.outcome_is_unknown())
}

pub(crate) fn no_answer(patience: Duration) -> Error {
    Error::new(Kind::TimedOut, format!("the store did not answer within {patience:?}"))
}
