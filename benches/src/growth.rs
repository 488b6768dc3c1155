//! Whether memory and files stay at the size of what is alive, however many operations went by.
//!
//! Each store runs in a process of its own, so that its memory is nobody else's. The clock is ours and
//! moves with the work, so that a TTL keeps a certain number of operations alive.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use semel_core::clock::micros;
use semel_core::policy::DEFAULTS;
use semel_core::{Clock, EffectStore, MemoryStore, Policy, SystemClock, Timestamp};
use semel_stores::sqlite::{Options, SqliteStore};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::Effort;
use crate::board::{Board, Line};
use crate::load::{Contestant, Direct};
use crate::machine::resident_mib;

const TTL: Duration = Duration::from_secs(100);
/// Operations that pass during a TTL; fewer if the run is short.
const LIVE_MAX: u64 = 20_000;
/// Sweeps during a TTL.
const SWEEPS: u64 = 10;
/// Many, and all in one transaction: ten million operations shall not take an hour.
const CALLERS: u64 = 1000;
/// Records looked at in one step of a sweep, as the sweeper does.
const BATCH: u32 = 500;
/// Points of a series.
const POINTS: u64 = 40;
/// How much larger the last quarter may be than the second: what an allocator and a log file sway by.
const GROWTH_PERCENT_MAX: f64 = 10.0;

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let operations: u64 = effort.pick(10_000_000, 200_000);
    // At the same time: speed is not the question here.
    let both = tokio::try_join!(in_own_process("memory", operations), in_own_process("sqlite", operations));
    both.map(|(memory, sqlite)| vec![memory.print(), sqlite.print()])
}

async fn in_own_process(engine: &str, operations: u64) -> Result<Board> {
    let start = Instant::now();
    let directory = tempfile::tempdir()?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--part", "growth", engine, &operations.to_string()])
        .arg(directory.path())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "the {engine} store's process failed");
    let mut points: Vec<[f64; 3]> = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        points.push(numbers.try_into().ok().with_context(|| format!("not a point: {line}"))?);
    }
    let title = format!("Growth: {engine} store, {operations} operations, {} alive", live(operations));
    let mut board = Board::new(title, "MiB");
    board.note(format!("{:.0} operations/s", operations as f64 / start.elapsed().as_secs_f64()));
    for (column, name) in [(1, "resident memory"), (2, "files")] {
        if points.iter().all(|point| point[column] == 0.0) {
            continue;
        }
        let line = points.iter().map(|point| (point[0], point[column])).collect::<Vec<_>>();
        let growth = growth_percent(&line);
        board.at_most(format!("{engine} store: growth of {name}"), growth, GROWTH_PERCENT_MAX, " %");
        board.lines.push(Line { name: format!("{name}, MiB"), points: line });
    }
    Ok(board)
}

fn live(operations: u64) -> u64 {
    LIVE_MAX.min(operations / 10)
}

/// The last quarter's mean against the second's; the first quarter fills the live set.
fn growth_percent(line: &[(f64, f64)]) -> f64 {
    let quarter = line.len() / 4;
    let mean = |part: &[(f64, f64)]| part.iter().map(|point| point.1).sum::<f64>() / part.len() as f64;
    100.0 * (mean(&line[line.len() - quarter..]) / mean(&line[quarter..2 * quarter]) - 1.0)
}

/// The part in a process of its own. Files go to `directory`.
pub(crate) async fn part(engine: &str, operations: u64, directory: &Path) -> Result<()> {
    let clock = Arc::new(Paced::start());
    let store: Arc<dyn EffectStore> = match engine {
        "memory" => Arc::new(MemoryStore::with_clock(clock.clone())),
        _ => {
            let options = Options { clock: clock.clone(), batch_max: CALLERS as usize, ..Options::default() };
            Arc::new(SqliteStore::open_with(directory.join("growth.db"), options)?)
        }
    };
    run(store, &clock, operations, directory).await
}

/// Works and sweeps in turns. Prints operations, memory and files, in MiB.
async fn run(store: Arc<dyn EffectStore>, clock: &Paced, operations: u64, directory: &Path) -> Result<()> {
    let policy = Policy::builder()
        .ttl(TTL)
        .lease(TTL / 10)
        .run_max(TTL / 5)
        .retry_window(TTL / 2)
        .build()
        .context("the terms of the run")?;
    let direct = Arc::new(Direct::with_terms(store.clone(), policy.terms()).await?);
    let stretch = live(operations) / SWEEPS;
    let stretches = operations / stretch;
    for done in 1..=stretches {
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let direct = direct.clone();
            callers.spawn(async move {
                for _ in 0..stretch / CALLERS {
                    direct.request().await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller.context("a caller panicked")??;
        }
        clock.pass(TTL / SWEEPS as u32);
        while store.sweep(BATCH, DEFAULTS.unknown_kept).await?.more {}
        if done % stretches.div_ceil(POINTS) == 0 {
            println!("{} {:.2} {:.2}", done * stretch, resident_mib()?, size_mib(directory)?);
        }
    }
    Ok(())
}

fn size_mib(directory: &Path) -> Result<f64> {
    let mut bytes = 0;
    for entry in directory.read_dir()? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes as f64 / (1024.0 * 1024.0))
}

/// A clock that moves with the work.
struct Paced(AtomicI64);

impl Paced {
    fn start() -> Self {
        Self(AtomicI64::new(SystemClock.now().as_micros()))
    }

    fn pass(&self, time: Duration) {
        self.0.fetch_add(micros(time), Ordering::Relaxed);
    }
}

impl Clock for Paced {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_sway_is_not() {
        let series = |y: fn(usize) -> f64| (0..40).map(|x| (x as f64, y(x))).collect::<Vec<_>>();
        assert!(growth_percent(&series(|x| 100.0 + x as f64 * 2.0)) > GROWTH_PERCENT_MAX);
        assert!(growth_percent(&series(|x| 100.0 + (x % 2) as f64 * 30.0)) < GROWTH_PERCENT_MAX);
    }
}
