//! The same measurement with a millisecond added to every sync, as on many cloud disks.
//!
//! A small library in front of `fsync` and `fdatasync` adds it, for the log and the store alike. It
//! has to be there when a process starts, hence a process of its own.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::Effort;
use crate::board::{Board, Latency, Sample};
use crate::load;
use crate::raw_log::RawLog;
use crate::sqlite::{LOG, Opened};

const STORE: &str = "SQLite";
const CALLERS: usize = 64;

pub(crate) async fn measure(effort: Effort, database: &Path) -> Result<Board> {
    let title = format!("SQLite: claim + complete, {CALLERS} callers, 1 ms added per sync");
    let mut board = Board::new(title, "req/s").against(LOG);
    let directory = tempfile::tempdir()?;
    let (source, library) = (directory.path().join("slow_sync.c"), directory.path().join("slow_sync.so"));
    fs::write(&source, include_str!("slow_sync.c"))?;
    let built =
        Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    match built.await {
        Ok(output) => ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => {
            board.note("SKIPPED: there is no C compiler (cc), so nothing was measured on a slow disk.");
            return Ok(board);
        }
    }
    let output = Command::new(std::env::current_exe()?)
        .args(["--part", "slow-disk", &effort.quick.to_string()])
        .arg(database)
        .env("LD_PRELOAD", &library)
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "the process with slow syncs failed");
    for line in String::from_utf8(output.stdout)?.lines() {
        let (name, sample) = parse(line).with_context(|| format!("not a sample: {line}"))?;
        board.add(name, sample);
    }
    Ok(board)
}

/// The part that runs with slow syncs. Prints one line per window.
pub(crate) async fn part(effort: Effort, database: &Path) -> Result<()> {
    let (log, Opened { store, direct }) = (Arc::new(RawLog::start()?), Opened::at(database).await?);
    for _ in 0..effort.rounds {
        print(LOG, load::window(&log, CALLERS, effort).await?);
        print(STORE, load::window(&direct, CALLERS, effort).await?);
    }
    store.close().await;
    Ok(())
}

fn print(name: &str, sample: Sample) {
    let Latency { p50_ms, p99_ms } = sample.latency.expect("windows time their waits");
    println!("{name}\t{}\t{p50_ms}\t{p99_ms}", sample.value);
}

fn parse(line: &str) -> Option<(&str, Sample)> {
    let (name, numbers) = line.split_once('\t')?;
    let mut numbers = numbers.split('\t').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    let value = next()?;
    Some((name, Sample { value, latency: Some(Latency { p50_ms: next()?, p99_ms: next()? }) }))
}
