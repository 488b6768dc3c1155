//! The layer over the memory store, beside bare axum and beside the crate `idempotent`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use axum::Router;

use super::servers::Server;
use super::wrk::{Traffic, Wrk};
use super::{json_of_1_kb, peers};
use crate::Effort;
use crate::board::Board;

const BARE: &str = "bare axum";
/// Keys whose replays are asked for.
const KEYS: u32 = 1000;

/// Who stands around the handler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layered {
    Semel,
    Idempotent,
    IdempotentRedis,
}

use Layered::{Idempotent, IdempotentRedis, Semel};

impl Layered {
    fn new_keys(self) -> &'static str {
        match self {
            Semel => "Semel, new keys",
            Idempotent => "idempotent, new keys",
            IdempotentRedis => "idempotent on Redis, new keys",
        }
    }

    fn replays(self) -> &'static str {
        match self {
            Semel => "Semel, replays",
            Idempotent => "idempotent, replays",
            IdempotentRedis => "idempotent on Redis, replays",
        }
    }

    async fn start(self, peer: &Path, redis: &Server) -> Result<Server> {
        match self {
            Semel => Server::part(&["semel"]).await,
            Idempotent => Server::idempotent(peer, None).await,
            IdempotentRedis => Server::idempotent(peer, Some(redis)).await,
        }
    }
}

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let wrk = Wrk::ready().await?;
    let peer = peers::idempotent().await?;
    let bare = Server::part(&["bare"]).await?;
    let mut board = Board::new("Layer over the memory store, POST of 1 KB", "req/s").against(BARE);
    for round in 0..effort.rounds {
        board.add(BARE, wrk.window(&bare, Traffic::NewKeys, effort.window).await?);
        for layered in [Semel, Idempotent, IdempotentRedis] {
            // Anew each time: no store may be measured by what earlier rounds left in it.
            let redis = Server::redis().await?;
            let server = layered.start(&peer, &redis).await?;
            if round == 0 {
                wrk.window(&server, Traffic::NewKeys, Duration::from_secs(1)).await?;
            }
            board.add(layered.new_keys(), wrk.window(&server, Traffic::NewKeys, effort.window).await?);
            wrk.window(&server, Traffic::Replays(KEYS), Duration::from_secs(1)).await?;
            board.add(layered.replays(), wrk.window(&server, Traffic::Replays(KEYS), effort.window).await?);
        }
    }
    for (name, share) in [(Layered::new_keys as fn(Layered) -> &'static str, 75.0), (Layered::replays, 82.0)]
    {
        let ours = name(Semel);
        let reached = 100.0 * board.median(ours) / board.median(BARE);
        board.at_least(format!("Layer: {ours}: share of bare axum"), reached, share, " %");
        for theirs in [Idempotent, IdempotentRedis].map(name) {
            let ahead = board.median(ours) / board.median(theirs);
            board.at_least(format!("Layer: {ours} against {theirs}"), ahead, 1.0, "×");
        }
    }
    board.note(format!(
        "Bodies have {} bytes. The Redis is private, on loopback, and writes nothing to disk.",
        json_of_1_kb().len()
    ));
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
