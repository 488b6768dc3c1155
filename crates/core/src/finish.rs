//! Storing how an attempt ended, before anybody hears of it.
//!
//! A store that is away is tried again for as long as the process lives. Meanwhile the caller is
//! told that the outcome is unknown, never that it succeeded.

use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::admit::{Admission, Call, Grant};
use crate::answer::{Answer, Ending, Origin, Refusal};
use crate::backoff::Backoff;
use crate::execute::Inner;
use crate::lease::Nonce;
use crate::outcome::{Body, Outcome};
use crate::policy::DEFAULTS;
use crate::record::{Recovery, State};
use crate::store::Pending;
use crate::tally::Tally;
use crate::verbs::{Complete, Completion, MarkUnknown, Release, Stale, Witness};
use crate::{mutant, seal};

/// The caller, who may have gone away.
type Tell = oneshot::Sender<Result<Answer, Refusal>>;

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
            Ending::Done(outcome) => self.store_outcome(call, grant, outcome, tell).await,
            Ending::NothingHappened(outcome) => {
                // True whether or not the store hears of it; if it does not, the lease lapses.
                let _ = tell.send(Ok(Answer { outcome, origin: Origin::NothingHappened }));
                let release = Release { holder: grant.lease.holder };
                self.insist(call.nonce, || self.store.release(&release)).await;
            }
            Ending::Unknown(why) => {
                tracing::warn!(operation = %call.operation, %why, "an attempt ended without a known outcome");
                Tally::count(&self.tally.unknown);
                let _ = tell.send(Err(NOT_KNOWN));
                // Under `rerun` the lease lapses and the next attempt runs; nobody would settle an unknown.
                if call.policy.terms().recovery != Recovery::Rerun {
                    let mark = MarkUnknown { witness: Witness::Holder(grant.lease.holder), note: why };
                    self.insist(call.nonce, || self.store.mark_unknown(&mark)).await;
                }
            }
        }
    }

    async fn store_outcome(&self, call: &Call, grant: Grant, outcome: Outcome, tell: Tell) {
        let settings = call.policy.settings();
        let holder = grant.lease.holder;
        let kept = call.policy.kept(&outcome);
        if mutant::on("large-body-forgotten") && matches!(kept.body, Body::NotKept { .. }) {
            let forgotten = Release { holder };
            let _ = tell.send(Ok(Answer { outcome, origin: Origin::Fresh }));
            self.insist(call.nonce, || self.store.release(&forgotten)).await;
            return;
        }
        let sealed = seal::close(&kept, call.operation.id(), settings.keys.as_ref());
        let complete = Complete { holder, outcome: sealed };
        let mut tell = Some(tell);
        if mutant::on("success-before-stored")
            && let Some(tell) = tell.take()
        {
            let _ = tell.send(Ok(Answer { outcome: outcome.clone(), origin: Origin::Fresh }));
        }
        let storing = pin!(self.insist(call.nonce, || self.store.complete(&complete)));
        let stored = match select(storing, self.runtime.sleep(settings.store_patience)).await {
            Either::Left((stored, _)) => stored,
            Either::Right(((), storing)) => {
                tracing::error!(operation = %call.operation, "an outcome cannot be stored yet; trying on in the background");
                Tally::count(&self.tally.stored_late);
                if let Some(tell) = tell.take() {
                    let _ = tell.send(Err(NOT_KNOWN));
                }
                if mutant::on("unstored-outcome-dropped") {
                    return;
                }
                storing.await
            }
        };
        let answer = match stored {
            Completion::Stored => Ok(Answer { outcome, origin: Origin::Fresh }),
            Completion::Refused(stale) => self.superseded(call, stale).await,
        };
        if let Some(tell) = tell.take() {
            let _ = tell.send(answer);
        }
    }

    /// The outcome was refused: another attempt counts. Its answer is the truth, if there is one.
    async fn superseded(&self, call: &Call, stale: Stale) -> Result<Answer, Refusal> {
        Tally::count(&self.tally.refused_outcomes);
        tracing::error!(operation = %call.operation, ?stale, "an outcome was refused: possible double effect");
        match self.store.get(call.operation.id()).await {
            Ok(Some(record)) if record.state == State::Completed => {
                match self.replay(call, &record.outcome.unwrap_or_default())? {
                    Admission::Replay(outcome) => Ok(Answer { outcome, origin: Origin::Replayed }),
                    _ => Err(NOT_KNOWN),
                }
            }
            _ => Err(NOT_KNOWN),
        }
    }

    /// Repeats a write, nonce and all, until the store has answered.
    pub(crate) async fn insist<'a, T>(&self, seed: Nonce, write: impl Fn() -> Pending<'a, T>) -> T {
        let mut backoff = Backoff::new(seed);
        loop {
            match write().await {
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::warn!(%error, retryable = error.is_retryable(), "the store refused a write; trying again")
                }
            }
            self.runtime.sleep(backoff.next_pause()).await;
        }
    }
}

fn unprotected(ending: Ending) -> Result<Answer, Refusal> {
    match ending {
        Ending::Done(outcome) | Ending::NothingHappened(outcome) => {
            Ok(Answer { outcome, origin: Origin::Unprotected })
        }
        Ending::Unknown(_) => Err(NOT_KNOWN),
    }
}
