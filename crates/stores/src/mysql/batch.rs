//! Lanes: claims and completions of many callers in one transaction. What a batch cannot answer plainly its caller
//! asks [alone](super::step).

use std::sync::Arc;

use semel_core::error::Error;
use semel_core::mutant;
use tokio::sync::watch;

use super::Shared;
use super::connect::Live;
use super::fault::{Again, Fault};
use super::flight::{self, Landed};
use crate::gather::{Batch, Queue, Reply, gather};
use crate::horizon::Seen;

/// How often a batch that lost a deadlock or its connection is sent.
pub(super) const FLIGHTS_MAX: u32 = 3;

/// Serves the queue until nobody can put anything into it, or the store ends.
pub(super) async fn lane(
    shared: Arc<Shared>,
    queue: Queue,
    mut ended: watch::Receiver<bool>,
    mut live: Option<Live>,
) {
    // Before the first claim, not because of it. Failing here is not worth a word: it will be tried again.
    let _ = connected(&shared, &mut live).await;
    while let Some(batch) = gather(&queue, &mut ended, shared.batch_max).await {
        if batch.len() > 0 {
            serve(&shared, &mut live, batch).await;
        }
    }
}

async fn connected<'a>(shared: &Shared, live: &'a mut Option<Live>) -> Result<&'a mut Live, Error> {
    let fit = match live.take() {
        Some(fit) => fit,
        None => shared.connector.open().await?,
    };
    let fit = live.insert(fit);
    shared.horizon.check()?;
    Ok(fit)
}

/// Flies a batch until it landed, or nobody can tell, or it is better taken apart.
async fn serve(shared: &Shared, live: &mut Option<Live>, batch: Batch) {
    shared.counts.add(&batch);
    let mut flights = 1;
    loop {
        let fit = match connected(shared, live).await {
            Ok(fit) => fit,
            Err(error) => return batch.fail(|| Error::new(error.kind(), error.to_string())),
        };
        let before = shared.horizon.seen();
        let fault = match flight::fly(shared, fit, &batch).await {
            Ok(landed) => {
                if answer(shared, fit, batch, landed, before).await.is_err() {
                    *live = None;
                }
                return;
            }
            Err(fault) => fault,
        };
        if fault.broken || fit.within(shared.connect_wait).roll_back().await.is_err() {
            *live = None;
        }
        if !fault.changed_nothing() {
            return batch.fail(|| fault.error());
        }
        if fault.again != Again::Lost || flights == FLIGHTS_MAX {
            return match fault.is_better_alone() && !mutant::on("my-large-neighbour-fails-all") {
                true => batch.give_back(),
                false => batch.fail(|| fault.error()),
            };
        }
        flights += 1;
    }
}

async fn answer(
    shared: &Shared,
    live: &mut Live,
    batch: Batch,
    mut landed: Landed,
    before: Seen,
) -> Result<(), Fault> {
    let met = match landed.unmet(&batch) {
        ids if ids.is_empty() => Ok(()),
        // Those not granted wrote nothing, so this may fail: they ask alone.
        ids => flight::meet(shared, live, &mut landed, &ids).await,
    };
    // Both are noted, also when the first is not fine.
    let drawn = landed.drawn().into_iter().flat_map(|(lowest, highest)| [lowest, highest]);
    let noted: Vec<bool> = drawn.map(|token| shared.horizon.note(token, before)).collect();
    let fine = noted.into_iter().all(|fine| fine);
    for waiting in batch.claims {
        let reply = match fine || !landed.has_granted(&waiting.call) {
            true => landed.claim(&shared.horizon, before, &waiting.call),
            false => Reply::Failed(shared.horizon.refusal().maybe_applied()),
        };
        let _ = waiting.reply.send(reply);
    }
    for waiting in batch.completions {
        let _ = waiting.reply.send(landed.completion(&waiting.call));
    }
    met
}
