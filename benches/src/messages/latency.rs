//! How long a message takes from its commit to the broker's acknowledgement, at a steady pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use super::broker::Broker;
use super::flow::pinned_name;
use super::pins::Pins;
use super::session::{Session, Times, message};
use super::shop::{Effect, Shop};
use crate::Effort;
use crate::board::{Board, Sample};
use crate::load;

/// Messages per second, one in a transaction.
const PACE: u64 = 2000;
const WRITERS: usize = 16;

pub(super) async fn measure(effort: Effort, shops: &[Shop], broker: &Broker, pins: &Pins) -> Result<Board> {
    let name = broker.name();
    let title = format!("Relay to {name}: from commit to broker at {PACE}/s, one message per transaction");
    let mut board = Board::new(title, "messages/s");
    let pinned = pinned_name(&shops[0]);
    for _ in 0..effort.rounds {
        for shop in shops {
            board.add(shop.name(), window(effort, shop, broker).await?);
            if matches!(shop, Shop::Postgres(_)) {
                let held = pins.hold().await?;
                board.add(&pinned, window(effort, shop, broker).await?);
                held.release().await?;
            }
        }
        broker.clear().await?;
    }
    let calm = board.latency(shops[0].name());
    board.at_most(format!("{} to {name}: p50 at {PACE}/s", shops[0].name()), calm.p50_ms, 10.0, " ms");
    let apart = 100.0 * (board.latency(&pinned).p50_ms / calm.p50_ms - 1.0);
    board.at_most(format!("{name}, p50: beside pinned transactions"), apart, 15.0, " % more");
    board.note(
        "Until the relay knows that the whole batch has landed. Messages per second are those committed.",
    );
    Ok(board)
}

async fn window(effort: Effort, shop: &Shop, broker: &Broker) -> Result<Sample> {
    let whole = effort.warm_up + effort.window;
    let times = Times::new((PACE as f64 * whole.as_secs_f64()) as usize + WRITERS);
    let session = Session::warm(shop, broker, times.clone()).await?;
    let next = Arc::new(AtomicU64::new(0));
    let writers = shop.writers(WRITERS).await?;
    let began = Instant::now();
    let (from, until) = (began + effort.warm_up, began + whole);
    let mut tasks = JoinSet::new();
    for mut writer in writers {
        let (next, times) = (next.clone(), times.clone());
        tasks.spawn(async move {
            loop {
                // Whoever is free writes the next one, when its time has come.
                let number = next.fetch_add(1, Ordering::Relaxed);
                let due = began + Duration::from_secs(1).mul_f64(number as f64 / PACE as f64);
                if due >= until {
                    return anyhow::Ok(());
                }
                tokio::time::sleep_until(due.into()).await;
                writer.transact(Effect::Nothing, &[message(number, number)]).await?;
                if due >= from {
                    times.committed(number);
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let took = began.elapsed().max(whole) - effort.warm_up;
    session.until_published((PACE as f64 * whole.as_secs_f64()) as u64).await?;
    session.stop().await?;
    let mut waits = load::waits();
    let all = times.waits();
    all.iter().for_each(|wait| load::record(&mut waits, *wait));
    Ok(Sample { value: all.len() as f64 / took.as_secs_f64(), latency: Some(load::latency(&waits)) })
}
