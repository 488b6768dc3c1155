//! Storing how an attempt ended, before anybody hears of it.
//!
//! A store that is away is tried again for as long as the process lives. Meanwhile the caller is
//! told that the outcome is unknown, never that it succeeded.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::admit::{Admission, Call, Grant};
use crate::answer::{Answer, Ending, Origin, Refusal};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::execute::Inner;
use crate::lease::Nonce;
use crate::outcome::{Body, Outcome};
use crate::policy::DEFAULTS;
use crate::record::{Recovery, State};
use crate::runtime::within;
use crate::store::Pending;
use crate::tally::Tally;
use crate::verbs::{Change, Complete, Completion, MarkUnknown, Release, Stale, Witness};
use crate::{mutant, seal};

/// The caller, who may have gone away.
type Tell = oneshot::Sender<Result<Answer, Refusal>>;

/// A write that was not answered within this is repeated; its first copy may still be applied.
const ANSWER_MAX: Duration = Duration::from_secs(30);

const NOT_KNOWN: Refusal = Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_max };

impl Inner {
    pub(crate) async fn finish(&self, call: &Call, grant: Option<Grant>, ending: Ending, tell: Tell) {
        let Some(grant) = grant else {
            let _ = tell.send(unprotected(ending));
            return;
        };
        let took = self.runtime.elapsed().saturating_sub(grant.sent);
        self.tally.observe(call.operation.scope().route(), took);
        match ending {
            Ending::Done(outcome) => self.store_outcome(call, grant, outcome, None, tell).await,
            Ending::DoneKept(outcome, ttl_min) => {
                self.store_outcome(call, grant, outcome, Some(ttl_min), tell).await;
            }
            Ending::NothingHappened(outcome) => {
                let release = Release { holder: grant.lease.holder };
                let mut tell = Telling(Some((tell, Ok(Answer { outcome, origin: Origin::NothingHappened }))));
                // True whether or not the store hears of it; if it does not, the lease lapses.
                let released = self.insist_or(call, || self.store.release(&release), || tell.now()).await;
                if let Change::Refused(stale) = released {
                    tracing::warn!(operation = %call.operation, ?stale, "nothing happened, but another attempt counts");
                    if !mutant::on("superseded-release-told") {
                        tell.instead(self.what_counts(call).await);
                    }
                }
                tell.now();
            }
            Ending::Unknown(why) => {
                tracing::warn!(operation = %call.operation, %why, "an attempt ended without a known outcome");
                Tally::count(&self.tally.unknown);
                let mut tell = Telling(Some((tell, Err(NOT_KNOWN))));
                // Under `rerun` the lease lapses and the next attempt runs; nobody would settle an unknown.
                if call.policy.terms().recovery != Recovery::Rerun {
                    let mark = MarkUnknown { witness: Witness::Holder(grant.lease.holder), note: why };
                    self.insist_or(call, || self.store.mark_unknown(&mark), || tell.now()).await;
                }
                tell.now();
            }
        }
    }

    async fn store_outcome(
        &self,
        call: &Call,
        grant: Grant,
        outcome: Outcome,
        ttl_min: Option<Duration>,
        tell: Tell,
    ) {
        let holder = grant.lease.holder;
        let kept = call.policy.kept(&outcome);
        if mutant::on("large-body-forgotten") && matches!(kept.body, Body::NotKept { .. }) {
            let forgotten = Release { holder };
            let _ = tell.send(Ok(Answer { outcome, origin: Origin::Fresh }));
            self.insist(call.nonce, || self.store.release(&forgotten)).await;
            return;
        }
        // With the key in hand, also if it was forgotten while the effect ran: then nobody will read it.
        let sealed = call.policy.seal(&kept, call.operation.id(), call.key.as_deref());
        let complete = Complete { holder, outcome: sealed, ttl_min };
        // What is left if the store can never take it: that it happened, and with which status (G-19).
        let bare = || {
            let sealed = call.policy.seal(&outcome.without_body(), call.operation.id(), call.key.as_deref());
            Complete { outcome: sealed, ..complete.clone() }
        };
        let mut tell = Some(tell);
        if mutant::on("success-before-stored")
            && let Some(tell) = tell.take()
        {
            let _ = tell.send(Ok(Answer { outcome: outcome.clone(), origin: Origin::Fresh }));
        }
        let overdue = || {
            tracing::error!(operation = %call.operation, "an outcome cannot be stored yet; trying on in the background");
            Tally::count(&self.tally.stored_late);
            if let Some(tell) = tell.take() {
                let _ = tell.send(Err(NOT_KNOWN));
            }
        };
        let stored = self.patiently(call, self.store_or_bare(call, &complete, bare), overdue).await;
        let answer = match stored {
            Completion::Stored => Ok(Answer { outcome, origin: Origin::Fresh }),
            Completion::Refused(stale) => self.superseded(call, stale).await,
        };
        if let Some(tell) = tell.take() {
            let _ = tell.send(answer);
        }
    }

    /// Stores an outcome, or what is left of it where the store says for certain that it is too large for it.
    /// Sending the same again would be of no use, and would go on for ever. A store that calls even the rest too
    /// large does not speak of size: then the whole is tried again.
    async fn store_or_bare(
        &self,
        call: &Call,
        complete: &Complete,
        bare: impl Fn() -> Complete,
    ) -> Completion {
        let judge = |error: Error| match error.is_too_large() && !mutant::on("too-large-tried-for-ever") {
            true => Err(error),
            false => Ok(error),
        };
        let mut backoff = Backoff::new(call.nonce);
        let mut rest = None;
        loop {
            let error = match self.insist_unless(call.nonce, || self.store.complete(complete), judge).await {
                Ok(stored) => return stored,
                Err(error) => error,
            };
            // Sealed once: what is repeated must be the same.
            let rest = rest.get_or_insert_with(&bare);
            let stored = if mutant::on("rest-tried-for-ever") {
                Ok(self.insist(call.nonce, || self.store.complete(rest)).await)
            } else {
                self.insist_unless(call.nonce, || self.store.complete(rest), judge).await
            };
            if let Ok(stored) = stored {
                tracing::error!(
                    operation = %call.operation, %error,
                    "an outcome was too large for the store, which keeps only that it happened, and with which status"
                );
                Tally::count(&self.tally.bodies_refused);
                return stored;
            }
            tracing::warn!(operation = %call.operation, %error, "the store takes no outcome at all; trying again");
            self.runtime.sleep(backoff.next_pause()).await;
        }
    }

    /// The outcome was refused: another attempt counts. Its answer is the truth, if there is one.
    async fn superseded(&self, call: &Call, stale: Stale) -> Result<Answer, Refusal> {
        Tally::count(&self.tally.refused_outcomes);
        tracing::error!(operation = %call.operation, ?stale, "an outcome was refused: possible double effect");
        self.what_counts(call).await
    }

    /// The key of the call's subject cannot be had. What happened before is told as it is; nothing runs.
    pub(crate) async fn without_key(&self, call: &Call, error: &Error) -> Result<Answer, Refusal> {
        let refusal = self.no_key(call, error);
        // A place that is away could not tell what it knows of the stored outcome either.
        if error.is_retryable() || error.outcome_is_unknown() {
            return Err(refusal);
        }
        match self.what_counts(call).await {
            Err(Refusal::OutcomeUnknown { .. }) => Err(refusal),
            told => told,
        }
    }

    /// What the attempt that counts has come to.
    async fn what_counts(&self, call: &Call) -> Result<Answer, Refusal> {
        let patience = call.policy.settings().store_patience;
        let record = within(&*self.runtime, patience, self.store.get(call.operation.id())).await;
        match record.unwrap_or(Ok(None)) {
            Ok(Some(record)) if record.state == State::Completed && call.is_of(&record) => {
                let stored = record.outcome.unwrap_or_default();
                let replay = match seal::subject_key(&stored) {
                    Some(_) => Box::pin(self.replay_by_key(call, &stored, None)).await,
                    None => self.replay(call, &stored),
                };
                match replay? {
                    Admission::Replay(outcome) => Ok(Answer { outcome, origin: Origin::Replayed }),
                    _ => Err(NOT_KNOWN),
                }
            }
            _ => Err(NOT_KNOWN),
        }
    }

    /// Insists; once the caller's patience is over, `overdue` is called, and it goes on.
    async fn insist_or<'a, T>(
        &self,
        call: &Call,
        write: impl Fn() -> Pending<'a, T>,
        overdue: impl FnOnce(),
    ) -> T {
        self.patiently(call, self.insist(call.nonce, write), overdue).await
    }

    /// Waits for a write; once the caller's patience is over, `overdue` is called, and it goes on.
    async fn patiently<T>(&self, call: &Call, write: impl Future<Output = T>, overdue: impl FnOnce()) -> T {
        let patience = call.policy.settings().store_patience;
        match within(&*self.runtime, patience, pin!(write)).await {
            Ok(answer) => answer,
            Err(writing) => {
                overdue();
                if mutant::on("unstored-outcome-dropped") {
                    return std::future::pending().await;
                }
                writing.await
            }
        }
    }

    /// Repeats a write, nonce and all, until the store has answered.
    pub(crate) async fn insist<'a, T>(&self, seed: Nonce, write: impl Fn() -> Pending<'a, T>) -> T {
        let Ok(answer) = self.insist_unless(seed, write, Ok::<_, Infallible>).await;
        answer
    }

    /// The same, until the store has answered or `judge` makes an end of it.
    async fn insist_unless<'a, T, E>(
        &self,
        seed: Nonce,
        write: impl Fn() -> Pending<'a, T>,
        judge: impl Fn(Error) -> Result<Error, E>,
    ) -> Result<T, E> {
        let mut backoff = Backoff::new(seed);
        loop {
            match within(&*self.runtime, ANSWER_MAX, write()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => {
                    let error = judge(error)?;
                    tracing::warn!(%error, retryable = error.is_retryable(), "a write failed; trying again");
                }
                Err(_) => {
                    tracing::warn!("the store did not answer a write within {ANSWER_MAX:?}; trying again")
                }
            }
            self.runtime.sleep(backoff.next_pause()).await;
        }
    }
}

/// An answer that is given once, now or later.
struct Telling(Option<(Tell, Result<Answer, Refusal>)>);

impl Telling {
    /// Changes the answer, if it was not given yet.
    fn instead(&mut self, better: Result<Answer, Refusal>) {
        if let Some((_, answer)) = &mut self.0 {
            *answer = better;
        }
    }

    fn now(&mut self) {
        if let Some((tell, answer)) = self.0.take() {
            let _ = tell.send(answer);
        }
    }
}

fn unprotected(ending: Ending) -> Result<Answer, Refusal> {
    match ending {
        Ending::Done(outcome) | Ending::DoneKept(outcome, _) | Ending::NothingHappened(outcome) => {
            Ok(Answer { outcome, origin: Origin::Unprotected })
        }
        Ending::Unknown(_) => Err(NOT_KNOWN),
    }
}
