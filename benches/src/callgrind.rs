//! Instruction counts: what a change costs, without the noise of a clock.
//!
//! This program runs a loop of itself under callgrind twice, with few and with many steps. The
//! difference is free of starting and stopping.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::Effort;
use crate::board::Board;

pub(crate) fn measure(effort: Effort) -> Result<Board> {
    let mut board = Board::new("Core, instructions by callgrind", "instructions/op");
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        board.note("SKIPPED: valgrind is not installed, so no instructions were counted.");
        return Ok(board);
    }
    let (few, many) = effort.pick((1_000, 9_000), (100, 300));
    for what in ["new", "replay", "fingerprint", "layer-bare", "layer-new", "layer-replay"] {
        let difference = instructions(what, many)?.saturating_sub(instructions(what, few)?);
        board.add(what, difference as f64 / (many - few) as f64);
    }
    board.note("Valgrind hides the processor's SHA instructions: hashing is counted as plain code.");
    Ok(board)
}

fn instructions(what: &str, steps: u64) -> Result<u64> {
    let directory = tempfile::tempdir()?;
    let counts = directory.path().join("counts");
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(std::env::current_exe()?)
        .args(["--part", "loop", what, &steps.to_string()])
        .output()?;
    ensure!(output.status.success(), "callgrind failed: {}", String::from_utf8_lossy(&output.stderr));
    let counts = fs::read_to_string(counts)?;
    let total = counts.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.context("callgrind wrote no totals")?.trim().parse()?)
}
