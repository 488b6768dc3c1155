//! A held lane, and for how long it may be believed.
//!
//! The store's lease began no earlier than the moment the last successful save was *sent*, by this
//! process's monotonic clock. From there, less a margin, is how long publishing is allowed. A process that
//! was paused finds its time over when it wakes up, asks the store, and learns whether it was replaced.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use semel_core::outbox::{Cursor, Entry, Position, Saved, Settled, Term};
use semel_core::{Backoff, Error, Nonce, Runtime, mutant};

use crate::patience::answered;

/// After so many leases without an answer, what could not be saved is left to be published again.
const SAVE_LEASES_MAX: u32 = 3;

/// Why a lane is no longer held.
#[derive(Debug)]
pub(super) enum Lost {
    /// Somebody else has it.
    Fenced,
    /// The store did not answer for so long that somebody else may have it.
    Lapsed(Option<Error>),
    /// The store will not work until somebody changes something.
    Store(Error),
    /// The sink will not.
    Sink(String),
}

pub(super) struct Grip {
    cursor: Box<dyn Cursor>,
    runtime: Arc<dyn Runtime>,
    lease: Duration,
    margin: Duration,
    sent_at: Duration,
}

impl Grip {
    /// A lane that was asked for at `sent_at`.
    pub(super) fn new(
        cursor: Box<dyn Cursor>,
        runtime: Arc<dyn Runtime>,
        sent_at: Duration,
        lease: Duration,
        margin: Duration,
    ) -> Self {
        Self { cursor, runtime, lease, margin, sent_at }
    }

    pub(super) fn term(&self) -> Term {
        self.cursor.term()
    }

    pub(super) fn position(&self, count: usize) -> Position {
        self.cursor.position(count)
    }

    /// Until then something may be published.
    fn stop_at(&self) -> Duration {
        self.sent_at + self.lease.saturating_sub(self.margin)
    }

    /// Makes sure that the lane is held now and for a while, asking the store if that is not certain.
    pub(super) async fn ensure(&mut self) -> Result<(), Lost> {
        if self.runtime.elapsed() < self.stop_at() || mutant::on("relay-publishes-after-lease") {
            return Ok(());
        }
        self.save(&[]).await?;
        // Answered, but so late that the lease may be over again.
        if self.runtime.elapsed() < self.stop_at() { Ok(()) } else { Err(Lost::Lapsed(None)) }
    }

    /// What to settle next. `None`: the store did not tell, and may later.
    pub(super) async fn next(&mut self, limit: usize) -> Result<Option<Vec<Entry>>, Lost> {
        match answered(&*self.runtime, self.cursor.next(limit)).await {
            Ok(entries) => Ok(Some(entries)),
            Err(error) if passes(&error) => {
                tracing::warn!(target: "semel::relay", lane = self.term().lane.0, %error, "the outbox was not read");
                Ok(None)
            }
            Err(error) => Err(Lost::Store(error)),
        }
    }

    /// Saves, again and again while the store does not answer: what was published should not be published
    /// again only because of that.
    pub(super) async fn save(&mut self, settled: &[Settled]) -> Result<(), Lost> {
        let patience = self.lease * SAVE_LEASES_MAX;
        let mut backoff = Backoff::new(Nonce::random());
        let began = self.runtime.elapsed();
        loop {
            let sent_at = self.runtime.elapsed();
            match answered(&*self.runtime, self.cursor.save(settled)).await {
                Ok(Saved::Kept) => {
                    self.sent_at = sent_at;
                    return Ok(());
                }
                Ok(Saved::Fenced) => return Err(Lost::Fenced),
                Err(error) if !passes(&error) => return Err(Lost::Store(error)),
                Err(error) if self.runtime.elapsed().saturating_sub(began) > patience => {
                    return Err(Lost::Lapsed(Some(error)));
                }
                Err(error) => {
                    tracing::warn!(target: "semel::relay", lane = self.term().lane.0, %error, "not saved yet");
                    self.runtime.sleep(backoff.next_pause()).await;
                }
            }
        }
    }

    /// Takes over what a sink says has landed.
    pub(super) async fn adopt(&mut self, landed: &Position) -> Result<(), Lost> {
        let sent_at = self.runtime.elapsed();
        match answered(&*self.runtime, self.cursor.adopt(landed)).await {
            Ok(Saved::Kept) => {
                self.sent_at = sent_at;
                Ok(())
            }
            Ok(Saved::Fenced) => Err(Lost::Fenced),
            Err(error) if passes(&error) => Err(Lost::Lapsed(Some(error))),
            Err(error) => Err(Lost::Store(error)),
        }
    }

    /// Works while the lane is held, renewing in time. The work is dropped when it no longer is.
    pub(super) async fn hold<Work: Future>(&mut self, work: Work) -> Result<Work::Output, Lost> {
        let (saving, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let guard = pin!(async {
            loop {
                let renew_at = self.sent_at + self.lease / 3;
                self.runtime.sleep(renew_at.saturating_sub(self.runtime.elapsed())).await;
                saving.store(true, Ordering::Relaxed);
                let renewed = {
                    let stop = self.runtime.sleep(self.stop_at().saturating_sub(self.runtime.elapsed()));
                    match select(pin!(self.save(&[])), stop).await {
                        Either::Left((renewed, _)) => renewed,
                        Either::Right(_) => Err(Lost::Lapsed(None)),
                    }
                };
                saving.store(false, Ordering::Relaxed);
                if renewed.is_err() || done.load(Ordering::Relaxed) {
                    return renewed;
                }
            }
        });
        match select(pin!(work), guard).await {
            Either::Left((output, guard)) => {
                // A save that has been sent is awaited: dropping it would leave the cursor in the dark.
                done.store(true, Ordering::Relaxed);
                if saving.load(Ordering::Relaxed) {
                    guard.await?;
                }
                Ok(output)
            }
            Either::Right((Err(lost), _)) => Err(lost),
            Either::Right((Ok(()), _)) => Err(Lost::Lapsed(None)),
        }
    }

    pub(super) async fn give_back(self) {
        let (lane, runtime) = (self.term().lane, self.runtime);
        match answered(&*runtime, self.cursor.give_back()).await {
            Ok(()) => tracing::info!(target: "semel::relay", lane = lane.0, "lane given back"),
            Err(error) => {
                tracing::warn!(target: "semel::relay", lane = lane.0, %error, "lane not given back: its lease lapses");
            }
        }
    }
}

/// Whether the same call may work later with nothing changed by anybody.
pub(super) fn passes(error: &Error) -> bool {
    error.is_retryable() || error.outcome_is_unknown()
}
