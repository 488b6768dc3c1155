//! The gateway beside nginx and beside its own store's ceiling; the layer beside bare axum and a peer.
//!
//! Every contestant is a process of its own on loopback; client, contestant and upstream share the
//! machine, as they do for all of them.

mod crowd;
mod gateway;
mod handler;
mod layer;
mod peers;
mod servers;
mod wrk;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

pub(crate) use crowd::measure as measure_crowd;
pub(crate) use gateway::measure as measure_gateway;
pub(crate) use handler::{app, json_of_1_kb, with_semel};
pub(crate) use layer::measure as measure_layer;
pub(crate) use servers::part;

/// Installs a Debian package if its program is missing and we may.
pub(super) async fn install(program: &str, package: &str) -> Result<()> {
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|at| at.join(program).is_file())
    };
    if found(program) {
        return Ok(());
    }
    let done = Command::new("apt-get")
        .args(["install", "-y", "-q", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .await;
    let done = done.with_context(|| format!("{program} is missing: install the package {package}"))?;
    ensure!(done.status.success() && found(program), "{program} is missing: install the package {package}");
    Ok(())
}

/// The gateway.
pub(super) async fn build_semel() -> Result<PathBuf> {
    build("../Cargo.toml", &["--bin".as_ref(), "semel".as_ref()]).await
}

/// The handler and our layer with the allocator that programs have unless they choose another.
pub(super) async fn build_layered() -> Result<PathBuf> {
    build("Cargo.toml", &["--bin".as_ref(), "layered".as_ref()]).await
}

/// Builds a program of this project, as users would, and says where it is.
pub(super) async fn build(manifest: &str, arguments: &[&OsStr]) -> Result<PathBuf> {
    let output = Command::new("cargo")
        .args(["build", "--release", "--message-format", "json", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest))
        .args(arguments)
        .kill_on_drop(true)
        .output()
        .await
        .context("cargo does not start")?;
    ensure!(
        output.status.success(),
        "{manifest} does not build: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mark = "\"executable\":\"";
    let at = text.rfind(mark).context("cargo named no program")? + mark.len();
    Ok(PathBuf::from(text[at..].split('"').next().unwrap_or_default()))
}
