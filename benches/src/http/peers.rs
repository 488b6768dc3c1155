//! What others wrote for the same purpose, built where nothing of this project is.
//!
//! Their target directories are in the user's cache: they are built once, and `cargo clean` leaves them alone.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// The only other gateway there is, as a user would install it.
const PROXY: &str = "idempotent-proxy-server";
const PROXY_VERSION: &str = "1.2.2";

/// The crate `idempotent`, around the handler that all layers are measured with, in a program of this name.
pub(super) async fn idempotent(program: &str) -> Result<PathBuf> {
    let target = home()?.join("target");
    // It asks for a newer compiler than this workspace, and builds with this one.
    let arguments = ["--ignore-rust-version".as_ref(), "--target-dir".as_ref(), target.as_os_str()];
    let arguments = [&arguments[..], &["--bin".as_ref(), program.as_ref()]].concat();
    let built = super::build("peers/idempotent/Cargo.toml", &arguments).await;
    built.context("the crate `idempotent` cannot be built beside us; it needs crates.io for the first time")
}

/// `idempotent-proxy-server` from crates.io, with the lock file it comes with.
pub(super) async fn proxy() -> Result<PathBuf> {
    let home = home()?;
    let root = home.join(format!("{PROXY}-{PROXY_VERSION}"));
    let program = root.join("bin").join(PROXY);
    if program.is_file() {
        return Ok(program);
    }
    println!("Installing {PROXY} {PROXY_VERSION} from crates.io, which takes some minutes");
    let output = Command::new("cargo")
        .args(["install", PROXY, "--version", PROXY_VERSION, "--locked", "--no-track", "--root"])
        .arg(&root)
        .arg("--target-dir")
        .arg(home.join("target"))
        .kill_on_drop(true)
        .output()
        .await
        .context("cargo does not start")?;
    ensure!(
        output.status.success() && program.is_file(),
        "{PROXY} {PROXY_VERSION} cannot be installed beside us; it needs crates.io for the first time: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(program)
}

fn home() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|cache| cache.is_absolute());
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set: peers have no place")?.join("semel/peers"))
}
