//! Deletes expired records, a little at a time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use semel_core::policy::DEFAULTS;
use semel_core::{EffectStore, Error, Runtime, store::SweepReport};

use crate::patience::answered;

/// Records looked at in one step. Small, so that claims never wait long behind it.
const BATCH: u32 = 500;
/// Pause between rounds that found nothing more to do.
const PAUSE: Duration = Duration::from_secs(10);

/// A task that keeps a store at the size of what is alive.
pub struct Sweeper {
    store: Arc<dyn EffectStore>,
    runtime: Arc<dyn Runtime>,
    pause: Duration,
    unknown_kept: Duration,
}

impl Sweeper {
    /// Sweeps every ten seconds; evidence of unknowns is kept whole for seven days.
    pub fn new(store: Arc<dyn EffectStore>, runtime: Arc<dyn Runtime>) -> Self {
        Self { store, runtime, pause: PAUSE, unknown_kept: DEFAULTS.unknown_kept }
    }

    /// Pauses this long between rounds.
    pub fn every(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Keeps the evidence of unknowns whole for this long.
    pub fn unknown_kept(mut self, kept: Duration) -> Self {
        self.unknown_kept = kept;
        self
    }

    /// Sweeps until `shutdown` ends.
    ///
    /// # Cancellation
    /// Safe. What was deleted had expired.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            let work = pin!(async {
                if let Err(error) = self.round().await {
                    tracing::warn!(%error, "sweeping stopped early; the next round goes on");
                }
                self.runtime.sleep(self.pause).await;
            });
            if let Either::Left(_) = select(shutdown.as_mut(), work).await {
                return;
            }
        }
    }

    /// One round: batches until nothing more is due.
    pub async fn round(&self) -> Result<SweepReport, Error> {
        let mut total = SweepReport::default();
        loop {
            let step = answered(&*self.runtime, self.store.sweep(BATCH, self.unknown_kept)).await?;
            total.deleted += step.deleted;
            total.shrunk += step.shrunk;
            if !step.more {
                return Ok(total);
            }
        }
    }
}
