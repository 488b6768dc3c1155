//! The layer over the memory store, beside bare axum and beside the crate `idempotent`.

use std::time::Duration;

use anyhow::Result;
use axum::Router;

use super::servers::Server;
use super::wrk::{Traffic, Wrk};
use crate::Effort;
use crate::board::Board;

const BARE: &str = "bare axum";
const FIRST: [&str; 2] = ["Semel, new keys", "idempotent, new keys"];
const REPLAY: [&str; 2] = ["Semel, replays", "idempotent, replays"];
/// Keys whose replays are asked for.
const KEYS: u32 = 1000;

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let wrk = Wrk::ready().await?;
    // It asks for a newer compiler than this workspace, and builds with this one.
    let peer = super::build("peers/idempotent/Cargo.toml", &["--ignore-rust-version"]).await?;
    let bare = Server::part(&["bare"]).await?;
    let mut board = Board::new("Layer over the memory store, POST of 1 KB", "req/s").against(BARE);
    for round in 0..effort.rounds {
        board.add(BARE, wrk.window(&bare.address, Traffic::NewKeys, effort.window).await?);
        for (at, part) in ["semel", "idempotent"].iter().enumerate() {
            // Anew each time: neither store may be measured by what earlier rounds left in it.
            let server = match *part {
                "idempotent" => Server::peer(&peer).await?,
                ours => Server::part(&[ours]).await?,
            };
            if round == 0 {
                wrk.window(&server.address, Traffic::NewKeys, Duration::from_secs(1)).await?;
            }
            board.add(FIRST[at], wrk.window(&server.address, Traffic::NewKeys, effort.window).await?);
            wrk.window(&server.address, Traffic::Replays(KEYS), Duration::from_secs(1)).await?;
            board.add(REPLAY[at], wrk.window(&server.address, Traffic::Replays(KEYS), effort.window).await?);
        }
    }
    for (names, share) in [(FIRST, 75.0), (REPLAY, 82.0)] {
        let [ours, theirs] = names;
        let reached = 100.0 * board.median(ours) / board.median(BARE);
        board.at_least(format!("Layer: {ours}: share of bare axum"), reached, share, " %");
        let ahead = board.median(ours) / board.median(theirs);
        board.at_least(format!("Layer: {ours} against {theirs}"), ahead, 1.0, "×");
    }
    Ok(vec![board.print()])
}

pub(crate) async fn with_semel(app: Router) -> Result<Router> {
    use semel_core::runtime::Tokio;
    use semel_core::{MemoryStore, Once};
    use std::sync::Arc;

    let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
    let route = semel_http::Route::builder("payments").build()?;
    Ok(app.layer(semel_http::SemelLayer::new(once, route)))
}
