//! Lanes: claims and completions of many callers in one transaction of one statement. What a batch cannot answer plainly
//! its caller asks [alone](super::step).

use std::sync::Arc;

use semel_core::error::Error;
use tokio::sync::watch;

use super::Shared;
use super::connect::Live;
use super::fault::Fault;
use super::flight::{self, Landed};
use crate::gather::{Batch, Queue, Reply, gather};
use crate::horizon::Seen;

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
        if batch.len() == 0 {
            continue;
        }
        match connected(&shared, &mut live).await {
            Ok(fit) => {
                let flown = fly(&shared, fit, batch).await;
                if flown.is_err_and(|fault| fault.broken) {
                    live.take().into_iter().for_each(Live::kill);
                }
            }
            Err(error) => batch.fail(|| Error::new(error.kind(), error.to_string())),
        }
    }
}

async fn connected<'a>(shared: &Shared, live: &'a mut Option<Live>) -> Result<&'a Live, Error> {
    live.take_if(|live| live.client.is_closed());
    let fit = match live.take() {
        Some(fit) => fit,
        None => shared.connector.open().await?,
    };
    let fit = live.insert(fit);
    shared.horizon.check()?;
    Ok(fit)
}

async fn fly(shared: &Shared, live: &Live, batch: Batch) -> Result<(), Fault> {
    shared.counts.add(&batch);
    let before = shared.horizon.seen();
    match flight::fly(shared, live, &batch, before).await {
        Ok(landed) => answer(shared, live, batch, landed, before).await,
        Err(fault) if fault.is_lost => {
            shared.horizon.lost(before);
            batch.fail(|| shared.horizon.refusal());
            Err(fault)
        }
        Err(fault) => {
            // One bad call must not fail its neighbours: each asks alone and hears its own error.
            match fault.changed_nothing() && !fault.broken {
                true => batch.give_back(),
                false => batch.fail(|| fault.error()),
            }
            Err(fault)
        }
    }
}

async fn answer(
    shared: &Shared,
    live: &Live,
    batch: Batch,
    mut landed: Landed,
    before: Seen,
) -> Result<(), Fault> {
    // Both are noted, also when the first is not fine.
    let drawn = [landed.lowest, landed.highest].into_iter().flatten();
    let noted: Vec<bool> = drawn.map(|kept| shared.horizon.note(kept.token, before)).collect();
    let fine = noted.into_iter().all(|fine| fine);
    if let Some(kept) = landed.highest.filter(|_| fine) {
        shared.horizon.keep(kept);
    }
    let (granted, lost): (Vec<_>, Vec<_>) =
        batch.claims.into_iter().partition(|waiting| landed.has_granted(waiting.call.operation.id()));
    for waiting in granted {
        let reply = match fine {
            true => landed.claim(&shared.horizon, before, &waiting.call),
            false => Reply::Failed(shared.horizon.refusal().maybe_applied()),
        };
        let _ = waiting.reply.send(reply);
    }
    for waiting in batch.completions {
        let _ = waiting.reply.send(landed.completion(&waiting.call));
    }
    if lost.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = lost.iter().map(|waiting| waiting.call.operation.id()).collect();
    let met = flight::meet(shared, live, &mut landed, &ids).await;
    for waiting in lost {
        // What was not met, for whatever reason, asks alone: nothing was done for it.
        let _ = waiting.reply.send(landed.claim(&shared.horizon, before, &waiting.call));
    }
    met
}
