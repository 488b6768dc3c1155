//! The relay: publishes what is in an outbox, in order, at least once, under the same id each time.
//!
//! It holds lanes by leases, so any number of relays can run; one that was paused or cut off notices when
//! it saves, and drops what it had. A crash between publishing and saving publishes again. What cannot be
//! published is set aside with its key, and after a while a dead letter: nothing is dropped.
//!
//! It does not make a receiver idempotent. Copies carry the id by which the sink, or the receiver, tells
//! them apart.

mod grip;
mod lane;
mod plan;
mod settings;
mod tally;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use semel_core::outbox::Facts;
use semel_core::{Error, Nonce, Outbox, Runtime};
use tokio::sync::{mpsc, watch};

use crate::patience::answered;
use crate::sinks::Sink;
use lane::Worker;
pub use settings::{Beyond, Fit, Retry, Settings};
pub use tally::Tally;

/// Why a relay does not go on until somebody changes something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// Its settings make no sense.
    #[error("{}", .0.join("; "))]
    Settings(Vec<String>),
    /// Messages may be tried for longer than the sink recognizes copies.
    #[error("{0}")]
    BeyondDedup(String),
    /// The database was restored or moved.
    #[error("nothing is published: {0}; see `semel outbox rebase --help`")]
    Stopped(String),
    /// The store cannot be used.
    #[error("the outbox cannot be used")]
    Store(#[source] Error),
    /// The sink cannot be used.
    #[error("the sink cannot be used: {0}")]
    Sink(String),
}

/// What all lanes of a relay share.
struct Shared {
    outbox: Arc<dyn Outbox>,
    sink: Arc<dyn Sink>,
    runtime: Arc<dyn Runtime>,
    settings: Settings,
    facts: Facts,
    holder: Nonce,
    tally: Arc<Tally>,
}

/// Publishes what is in an outbox.
pub struct Relay {
    shared: Arc<Shared>,
}

impl Relay {
    /// Refuses settings that make no sense for this outbox and this sink.
    pub fn new(
        outbox: Arc<dyn Outbox>,
        sink: Arc<dyn Sink>,
        runtime: Arc<dyn Runtime>,
        settings: Settings,
    ) -> Result<Self, Ended> {
        let facts = outbox.facts();
        let wrong = settings.check(facts.lanes);
        if !wrong.is_empty() {
            return Err(Ended::Settings(wrong));
        }
        match (settings.fit(&sink.about()), settings.beyond_dedup) {
            (Fit::Within, _) => {}
            (Fit::Beyond(why), Beyond::Refuse) => return Err(Ended::BeyondDedup(why)),
            (Fit::Beyond(why), Beyond::Warn) => tracing::warn!(target: "semel::relay", "{why}"),
        }
        let (holder, tally) = (Nonce::random(), Arc::default());
        Ok(Self { shared: Arc::new(Shared { outbox, sink, runtime, settings, facts, holder, tally }) })
    }

    /// What it has done.
    pub fn tally(&self) -> Arc<Tally> {
        self.shared.tally.clone()
    }

    /// Works until `shutdown` ends; then finishes the batches at hand and gives the lanes back. Ends by
    /// itself only if nothing can be done without somebody's help.
    ///
    /// # Cancellation
    /// Lanes go on until what they are at is done, and are then given back. What was published and not
    /// saved comes again.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), Ended> {
        let shared = &self.shared;
        let (drain, draining) = watch::channel(false);
        let (report, mut reports) = mpsc::unbounded_channel();
        for lane in shared.settings.chosen(shared.facts.lanes) {
            let worker = Worker { shared: shared.clone(), lane, draining: draining.clone() };
            let report = report.clone();
            shared.runtime.spawn(Box::pin(async move {
                let _ = report.send(worker.run().await);
            }));
        }
        shared.runtime.spawn(Box::pin(tend(shared.clone(), draining)));
        drop(report);

        let mut ended = Ok(());
        let mut shutdown = pin!(shutdown);
        loop {
            match select(shutdown.as_mut(), pin!(reports.recv())).await {
                Either::Left(_) => break,
                Either::Right((Some(Ok(())), _)) => {}
                Either::Right((Some(Err(why)), _)) => {
                    ended = Err(why);
                    break;
                }
                Either::Right((None, _)) => break,
            }
        }
        let _ = drain.send(true);
        while let Some(report) = reports.recv().await {
            ended = ended.and(report);
        }
        ended
    }
}

/// Housekeeping: due messages into their lanes, settled ones out of the way.
async fn tend(shared: Arc<Shared>, mut draining: watch::Receiver<bool>) {
    loop {
        let more = match answered(&*shared.runtime, shared.outbox.tend()).await {
            Ok(tended) => tended.more,
            Err(error) => {
                tracing::warn!(target: "semel::relay", %error, "housekeeping stopped early; the next round goes on");
                false
            }
        };
        let pause = if more { shared.settings.poll } else { shared.settings.tend };
        let sleep = shared.runtime.sleep(pause);
        if let Either::Right(_) = select(sleep, pin!(draining.wait_for(|draining| *draining))).await {
            return;
        }
    }
}
