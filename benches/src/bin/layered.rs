//! Bare axum, or Semel's layer around it, with the allocator that a program has unless it chooses another.

#[path = "../http/handler.rs"]
mod handler;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let app = match std::env::args().nth(1).as_deref() {
        Some("bare") => handler::app(),
        Some("semel") => handler::with_semel(handler::app())?,
        other => bail!("no such server: {other:?}"),
    };
    runtime.block_on(handler::serve(app))
}
