//! Claims beside a sweep: a million expired rows go while callers claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use semel_core::policy::DEFAULTS;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;
use tokio::task::JoinSet;

use crate::Effort;
use crate::board::{Board, Sample};
use crate::copies;
use crate::load::{self, Direct};

const CALLERS: usize = 32;
/// Records looked at in one step, as the sweeper does.
const BATCH: u32 = 500;
const QUIET: &str = "claims alone";
const BESIDE: &str = "claims beside the sweep";

pub(super) async fn measure(effort: Effort, watch: &PgPool, ours: &Arc<Direct>) -> Result<Board> {
    let rows: u64 = effort.pick(1_000_000, 20_000);
    fill(watch, rows).await?;
    let mut board =
        Board::new(format!("Postgres: {CALLERS} callers beside a sweep of {rows} rows"), "claims/s")
            .against(QUIET);
    let mut sweeping = Duration::ZERO;
    for _ in 0..effort.rounds {
        board.add(QUIET, claims_during(ours, tokio::time::sleep(effort.window)).await?.0);
        let share = rows / effort.rounds as u64;
        let (sample, took) = claims_during(ours, sweep(ours, share)).await?;
        board.add(BESIDE, sample);
        sweeping += took.0;
        ensure!(took.1? == share, "the sweep ended early");
    }
    board.note(format!("{rows} rows swept in {:.1} s, {BATCH} at a time.", sweeping.as_secs_f64()));
    let times = board.latency(BESIDE).p99_ms / board.latency(QUIET).p99_ms;
    board.at_most("Postgres store: p99 of claims beside a sweep", times, 2.0, "×");
    Ok(board)
}

/// Lets callers claim (and complete) until `other` ends. Only claims are counted and timed.
async fn claims_during<T>(
    ours: &Arc<Direct>,
    other: impl Future<Output = T>,
) -> Result<(Sample, (Duration, T))> {
    let over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (ours, over) = (ours.clone(), over.clone());
        callers.spawn(async move {
            let mut waits = load::waits();
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                let lease = ours.claim().await?;
                load::record(&mut waits, start.elapsed());
                ours.complete(lease).await?;
            }
            anyhow::Ok(waits)
        });
    }
    let start = Instant::now();
    let answer = other.await;
    let took = start.elapsed();
    over.store(true, Ordering::Relaxed);
    let mut all: Histogram<u64> = load::waits();
    while let Some(caller) = callers.join_next().await {
        all.add(caller.context("a caller panicked")??).context("histograms of one shape")?;
    }
    let sample = Sample { value: all.len() as f64 / took.as_secs_f64(), latency: Some(load::latency(&all)) };
    Ok((sample, (took, answer)))
}

/// Sweeps until `rows` are gone, or nothing more is due.
async fn sweep(ours: &Direct, rows: u64) -> Result<u64> {
    let mut gone = 0;
    while gone < rows {
        let left = u32::try_from(rows - gone).unwrap_or(BATCH).min(BATCH);
        let step = ours.store.sweep(left, DEFAULTS.unknown_kept).await?;
        gone += step.deleted;
        if !step.more {
            break;
        }
    }
    Ok(gone)
}

/// Copies a completed operation `rows` times, with a past in which all of them expired.
async fn fill(watch: &PgPool, rows: u64) -> Result<()> {
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = 'semel_operation'::regclass AND attnum > 0 \
         AND NOT attisdropped ORDER BY attnum",
    )
    .fetch_all(watch)
    .await?;
    let past = "one.created_at - 30 * 86400000000::bigint + n";
    let changed = [
        ("token", "nextval('semel_token')"),
        ("id", "sha256(int8send(one.token) || int8send(n))"),
        ("nonce", "substr(sha256(int8send(n)), 1, 16)"),
        ("created_at", past),
        ("settled_at", past),
        ("sweep_at", past),
    ];
    let source = format!(
        "(SELECT * FROM semel_operation WHERE state = 2 ORDER BY token DESC LIMIT 1) AS one, generate_series(1, {rows}) AS n"
    );
    let sql = copies::statement(&columns, &changed, &source);
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(watch).await?;
    sqlx::raw_sql("ANALYZE semel_operation; CHECKPOINT").execute(watch).await?;
    Ok(())
}
