//! What a message costs the transaction it is written in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::Mutex;

use super::budget::Budget;
use super::session::messages;
use super::shop::{Effect, Shop, Writer};
use crate::Effort;
use crate::board::{Board, Sample};
use crate::load;

/// Connections of the service, each with one transaction at a time.
const CALLERS: usize = 16;
const BARE: &str = "one insert";
const WITH: &str = "one insert and a message";

pub(super) async fn measure(effort: Effort, shops: &[Shop]) -> Result<Vec<Board>> {
    let mut boards = Vec::new();
    for shop in shops {
        let title = format!("{}: what a message costs its transaction", shop.name());
        let mut board = Board::new(title, "transactions/s").against(BARE);
        let mut writers = shop.writers(CALLERS).await?;
        let mut spent = [None; 2];
        for _ in 0..effort.rounds {
            for (at, (name, count)) in [(BARE, 0), (WITH, 1)].into_iter().enumerate() {
                let before = Budget::now()?;
                let (sample, back, all) = window(effort, writers, count).await?;
                spent[at] = Some(Budget::now()?.since(before, all));
                writers = back;
                board.add(name, sample);
            }
        }
        let on_top = 100.0 * (board.median(BARE) / board.median(WITH) - 1.0);
        board.at_most(format!("{}: a message on top of one insert", shop.name()), on_top, 30.0, " %");
        if matches!(shop, Shop::Sqlite(_)) {
            board.note("SQLite has one writer.");
        } else {
            board.note(format!(
                "{CALLERS} writers, a connection each. p50 and p99 are of whole transactions."
            ));
        }
        if let ([Some(bare), Some(with)], Shop::Postgres(_)) = (spent, shop) {
            board.note(format!(
                "Processor time of a transaction, last round: {bare}; with a message, {with}."
            ));
        }
        boards.push(board.print());
    }
    Ok(boards)
}

/// What was measured, the writers, and how many transactions there were with those of the warm-up.
async fn window(effort: Effort, writers: Vec<Writer>, count: u64) -> Result<(Sample, Vec<Writer>, u64)> {
    let from = Instant::now() + effort.warm_up;
    let until = from + effort.window;
    let waits = Arc::new(Mutex::new((load::waits(), 0_u64)));
    let mut tasks = Vec::new();
    for (caller, mut writer) in writers.into_iter().enumerate() {
        let waits = waits.clone();
        tasks.push(tokio::spawn(async move {
            let mut times: Vec<Duration> = Vec::new();
            let mut done = 0;
            for n in 0.. {
                let began = Instant::now();
                writer.transact(Effect::Order, &messages(caller as u64 + n * 100, count)).await?;
                let now = Instant::now();
                done += 1;
                if now >= until {
                    break;
                }
                if now >= from {
                    times.push(now - began);
                }
            }
            let mut waits = waits.lock().await;
            waits.1 += times.len() as u64;
            times.into_iter().for_each(|time| load::record(&mut waits.0, time));
            anyhow::Ok((writer, done))
        }));
    }
    let mut back = Vec::new();
    let mut all = 0;
    for task in tasks {
        let (writer, done) = task.await??;
        back.push(writer);
        all += done;
    }
    let waits = waits.lock().await;
    let value = waits.1 as f64 / effort.window.as_secs_f64();
    Ok((Sample { value, latency: Some(load::latency(&waits.0)) }, back, all))
}
