//! What the numbers were taken on: facts that matter for them, and none that name the machine.

use std::fmt;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::board::median;

/// Appends timed to learn what durability costs here.
const APPENDS: usize = 200;
/// Under this, the disk is none: the temporary directory lives in memory, or syncing does nothing.
const SYNC_US_PLAUSIBLE: f64 = 15.0;

/// What the numbers were taken on.
pub(crate) struct Machine {
    /// Names and values, in order.
    pub(crate) facts: Vec<(&'static str, String)>,
}

impl Machine {
    pub(crate) fn look() -> Result<Self> {
        let cores = std::thread::available_parallelism()?.to_string();
        let sync_us = sync_cost_us().context("the temporary directory cannot be measured")?;
        let mut sync = format!("{sync_us:.0} µs");
        if sync_us < SYNC_US_PLAUSIBLE {
            sync += " — too fast for a disk; set TMPDIR to a directory on one";
        }
        let facts = vec![
            ("cores", cores),
            ("processor", field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into())),
            ("memory", memory_gib()),
            ("4 KB append + fdatasync", sync),
            ("compiler", said_by("rustc", &["--version"])),
            ("date", said_by("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
            ("commit", commit()),
        ];
        Ok(Self { facts })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts.iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))
    }
}

/// Resident memory of this process, in MiB.
pub(crate) fn resident_mib() -> Result<f64> {
    const PAGE_BYTES: f64 = 4096.0;
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).context("statm has a second field")?.parse()?;
    Ok(pages * PAGE_BYTES / (1024.0 * 1024.0))
}

fn sync_cost_us() -> Result<f64> {
    let mut file = tempfile::tempfile()?;
    let mut times = Vec::new();
    for _ in 0..APPENDS {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times.into_iter()))
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_gib() -> String {
    let kib = field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    kib.map_or("unknown".into(), |kib| format!("{:.0} GiB", kib / (1024.0 * 1024.0)))
}

fn said_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".into(),
    }
}

fn commit() -> String {
    let commit = said_by("git", &["rev-parse", "--short", "HEAD"]);
    match said_by("git", &["status", "--porcelain", "--", ".."]).as_str() {
        "" => commit,
        _ => format!("{commit}, with changes"),
    }
}
