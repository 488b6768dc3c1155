//! How many messages a relay publishes: while they are written, and of a backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use semel_core::outbox::{Entry, Facts, Lane, Term};
use semel_workers::sinks::{Format, Parcel, Stamp};
use tokio::task::JoinSet;

use super::broker::{Broker, Producer};
use super::budget::{Budget, Each};
use super::pins::Pins;
use super::poller::Poller;
use super::session::{Session, Times, messages};
use super::shop::{Effect, Shop};
use super::watermill::Watermill;
use crate::Effort;
use crate::board::Board;

/// Messages in one transaction.
const PER_TRANSACTION: u64 = 10;
/// Connections that write.
const WRITERS: usize = 8;
/// Writers wait while so many are not published: what is measured is a flow, not a growing heap.
const AHEAD_MAX: u64 = 5000;
/// Messages in one transaction while a backlog is made.
const HEAP: u64 = 1000;
const ROOM: Duration = Duration::from_millis(1);
const OWN: &str = "the broker's own producer";
const POLLER: &str = "Postgres, SKIP LOCKED poller";
const WATERMILL: &str = "Postgres, Watermill's forwarder";

/// Messages that are published as they are written, ten in a transaction.
pub(super) async fn live(effort: Effort, shops: &[Shop], broker: &Broker, pins: &Pins) -> Result<Board> {
    let name = broker.name();
    let mut board = Board::new(
        format!("Relay to {name}, live, {PER_TRANSACTION} messages per transaction"),
        "messages/s",
    );
    let pinned = pinned_name(&shops[0]);
    let mut spent = None;
    for _ in 0..effort.rounds {
        for shop in shops {
            let session = Session::warm(shop, broker, Times::new(0)).await?;
            let (rate, each) = live_window(effort, shop, &session).await?;
            board.add(shop.name(), rate);
            session.stop().await?;
            if matches!(shop, Shop::Postgres(_)) {
                spent = Some(each);
                let held = pins.hold().await?;
                let session = Session::warm(shop, broker, Times::new(0)).await?;
                board.add(&pinned, live_window(effort, shop, &session).await?.0);
                session.stop().await?;
                held.release().await?;
            }
        }
        broker.clear().await?;
    }
    let reached = board.median(shops[0].name());
    board.at_least(format!("{} to {name}, live", shops[0].name()), reached, 20_000.0, "/s");
    let apart = 100.0 * (board.median(&pinned) / reached - 1.0);
    board.within(format!("{name}, live: beside pinned transactions"), apart, 15.0, " %");
    board.note(format!(
        "{WRITERS} writers (SQLite: one), who wait while more than {AHEAD_MAX} messages are not published."
    ));
    if let Some(each) = spent {
        board.note(format!("Processor time of a message from Postgres, last round: {each}."));
    }
    Ok(board)
}

pub(super) fn pinned_name(shop: &Shop) -> String {
    format!("{}, beside pinned transactions", shop.name())
}

async fn live_window(effort: Effort, shop: &Shop, session: &Session) -> Result<(f64, Each)> {
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for (n, mut writer) in shop.writers(WRITERS).await?.into_iter().enumerate() {
        let (stop, written, tally) = (stop.clone(), written.clone(), session.tally.clone());
        let before = tally.published.load(Ordering::Relaxed);
        let mut key = n as u64 * 1_000_000;
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let published = tally.published.load(Ordering::Relaxed) - before;
                if written.load(Ordering::Relaxed).saturating_sub(published) > AHEAD_MAX {
                    tokio::time::sleep(ROOM).await;
                    continue;
                }
                writer.transact(Effect::Nothing, &messages(key, PER_TRANSACTION)).await?;
                written.fetch_add(PER_TRANSACTION, Ordering::Relaxed);
                key += PER_TRANSACTION;
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(effort.warm_up).await;
    let (from, began, before) = (session.published(), Instant::now(), Budget::now()?);
    tokio::time::sleep(effort.window).await;
    let (count, took) = (session.published() - from, began.elapsed());
    let spent = Budget::now()?.since(before, count);
    stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    session.until_published(written.load(Ordering::Relaxed)).await?;
    Ok((count as f64 / took.as_secs_f64(), spent))
}

/// Messages that are there when the relay begins, beside what the broker's own producer does with the same
/// bytes, and beside what everybody writes first.
pub(super) async fn backlog(
    effort: Effort,
    shops: &[Shop],
    broker: &Broker,
    poller: &Poller,
) -> Result<Board> {
    let (name, count) = (broker.name(), broker.backlog(effort));
    let mut board = Board::new(format!("Relay to {name}, a backlog of {count}"), "messages/s").against(OWN);
    let producer = broker.producer().await?;
    let prefix = broker.sink().await?.about().attribute_prefix;
    let watermill = match broker {
        Broker::Kafka { address } => Some((address, Watermill::build().await)),
        Broker::Nats { .. } | Broker::SyncedNats { .. } | Broker::Nowhere => None,
    };
    let mut spent = None;
    for _ in 0..effort.rounds {
        let parcels = parcels(count, prefix);
        let before = Budget::now()?;
        board.add(OWN, own(&producer, parcels.clone()).await?);
        let of_own = Budget::now()?.since(before, count);
        for shop in shops {
            fill(shop, count).await?;
            let (rate, each) = drained(shop, broker, count).await?;
            board.add(shop.name(), rate);
            if let Shop::Postgres(url) = shop {
                spent = Some((of_own, each));
                if let Some((address, Ok(watermill))) = &watermill {
                    board.add(WATERMILL, watermill.drain(url, address, count).await?);
                }
                poller.fill(count).await?;
                board.add(POLLER, poller.drain(&producer, &parcels, count).await?);
            }
        }
        broker.clear().await?;
    }
    let share = |board: &Board, name: &str| 100.0 * board.median(name) / board.median(OWN);
    let reached = share(&board, shops[0].name());
    board.at_least(format!("{} to {name}: share of its own producer", shops[0].name()), reached, 80.0, " %");
    board.note("Counted from the first tenth to the last message, so that starting is not.");
    if let Some((own, each)) = spent {
        board.note(format!(
            "Processor time of a message, last round: of the producer's own, {own}; from Postgres, {each}."
        ));
    }
    match &watermill {
        Some((_, Ok(_))) => board.note("Watermill (Go): its SQL outbox and forwarder to Kafka, with batches of 1000 and acknowledgements by all replicas, else as it comes. One message at a time."),
        Some((_, Err(why))) => board.note(format!("Watermill is not measured: {why:#}.")),
        None => {}
    }
    board.note("The poller: SELECT … FOR UPDATE SKIP LOCKED, publish, DELETE, COMMIT; one process, 1000 at a time. It keeps no order.");
    Ok(board)
}

/// What a relay would send, without an outbox.
pub(super) fn parcels(count: u64, prefix: &'static str) -> Arc<[Parcel]> {
    let facts = Facts { engine: "none", store_id: [7; 16], lanes: 8 };
    let stamp = Stamp::new(&facts, Term { lane: Lane(0), epoch: 1 }, Format::default(), prefix, None);
    let entries = messages(0, count).into_iter().zip(1..);
    entries
        .map(|(message, sequence)| {
            stamp.parcel(&Entry { sequence, message: message.into(), tries: 0, behind: false })
        })
        .collect()
}

async fn own(producer: &Producer, parcels: Arc<[Parcel]>) -> Result<f64> {
    let (began, count) = (Instant::now(), parcels.len());
    producer.write(parcels).await?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Writes so many messages, in large transactions.
pub(super) async fn fill(shop: &Shop, count: u64) -> Result<()> {
    let mut tasks = JoinSet::new();
    let writers = shop.writers(WRITERS).await?;
    let share = count / writers.len() as u64;
    for (n, mut writer) in writers.into_iter().enumerate() {
        tasks.spawn(async move {
            let (from, until) = (n as u64 * share, (n as u64 + 1) * share);
            for from in (from..until).step_by(HEAP as usize) {
                let some = messages(from, HEAP.min(until - from));
                writer.transact(Effect::Nothing, &some).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

async fn drained(shop: &Shop, broker: &Broker, count: u64) -> Result<(f64, Each)> {
    let session = Session::start(shop, broker, Times::new(0)).await?;
    session.until_published(count / 10).await?;
    let (first, began, before) = (session.published(), Instant::now(), Budget::now()?);
    session.until_published(count).await?;
    let rate = (count - first) as f64 / began.elapsed().as_secs_f64();
    let spent = Budget::now()?.since(before, count - first);
    session.stop().await?;
    Ok((rate, spent))
}
