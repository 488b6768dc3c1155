//! Watermill's SQL outbox and forwarder, in Go: the same work by somebody else's library.
//!
//! A program of a few lines around it is in `peers/watermill`. It is built when it is needed, with Go, into the user's
//! cache; where that does not work the board says why, and the rest is measured all the same.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::broker::TOPIC;

/// Longest wait for it to be built, modules from the network included; and for one window.
const BUILD_MAX: Duration = Duration::from_secs(300);
const WINDOW_MAX: Duration = Duration::from_secs(120);

pub(super) struct Watermill {
    program: PathBuf,
}

impl Watermill {
    pub(super) async fn build() -> Result<Self> {
        let program = cache()?.join("watermill");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/watermill");
        let mut go = Command::new("go");
        go.args(["build", "-buildvcs=false", "-o"]).arg(&program).arg(".").current_dir(source);
        let built =
            tokio::time::timeout(BUILD_MAX, go.kill_on_drop(true).stdin(Stdio::null()).output()).await;
        let built = built.context("building took too long")?.context("Go is needed to build it")?;
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(built.status.success(), "{}", said.lines().last().unwrap_or("it does not build"));
        Ok(Self { program })
    }

    /// Writes and forwards so many messages; how many a second it forwarded.
    pub(super) async fn drain(&self, database: &str, kafka: &str, count: u64) -> Result<f64> {
        let mut peer = Command::new(&self.program);
        peer.arg(database).arg(kafka).arg(TOPIC).arg(count.to_string());
        let done =
            tokio::time::timeout(WINDOW_MAX, peer.kill_on_drop(true).stdin(Stdio::null()).output()).await;
        let done = done.context("Watermill took too long")??;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "Watermill ended: {}", said.lines().last().unwrap_or_default());
        Ok(String::from_utf8_lossy(&done.stdout).trim().parse()?)
    }
}

/// Where peers are kept once they are built.
fn cache() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let place = cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("semel/peers");
    std::fs::create_dir_all(&place)?;
    Ok(place)
}
