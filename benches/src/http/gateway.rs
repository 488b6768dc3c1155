//! The gateway: without keys beside nginx, with new keys beside what its store can do, replays
//! beside unkeyed requests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use semel_stores::postgres::PostgresStore;

use super::servers::Server;
use super::wrk::{Traffic, Wrk};
use crate::Effort;
use crate::board::Board;
use crate::load::{self, Direct};
use crate::postgres::cluster::Cluster;
use crate::sqlite::Opened;

const CALLERS: usize = 64;
/// Keys whose replays are asked for.
const KEYS: u32 = 1000;
const DIRECT: &str = "direct";
const NGINX: &str = "nginx";
const GATEWAY: &str = "Semel";

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let semel = super::build("../Cargo.toml", &["--bin", "semel"]).await?;
    let wrk = Wrk::ready().await?;
    let upstream = Server::part(&["bare"]).await?;
    let target = format!("http://{}", upstream.address);
    let mut boards = Vec::new();
    let nginx = Server::nginx(&upstream.address).await?;
    let gateway = Server::gateway(&semel, &["--upstream", &target], true).await?;
    for (title, traffic, share) in
        [("Gateway: GET", Traffic::Get, 75.0), ("Gateway: POST of 1 KB without a key", Traffic::Post, 65.0)]
    {
        let mut board = Board::new(title, "req/s").against(NGINX);
        for _ in 0..effort.rounds {
            for (name, server) in [(DIRECT, &upstream), (NGINX, &nginx), (GATEWAY, &gateway)] {
                board.add(name, wrk.window(&server.address, traffic, effort.window).await?);
            }
        }
        let reached = 100.0 * board.median(GATEWAY) / board.median(NGINX);
        board.at_least(format!("{title}: share of nginx"), reached, share, " %");
        let tail = board.latency(GATEWAY).p99_ms / board.latency(NGINX).p99_ms;
        board.at_most(format!("{title}: p99 against nginx"), tail, 1.0, "×");
        boards.push(board.print());
    }
    drop(nginx);
    boards.push(keyed_on_sqlite(&semel, &wrk, &target, effort).await?.print());
    boards.push(keyed_on_postgres(&semel, &wrk, &target, effort).await?.print());
    Ok(boards)
}

async fn keyed_on_sqlite(semel: &Path, wrk: &Wrk, target: &str, effort: Effort) -> Result<Board> {
    let directory = tempfile::tempdir()?;
    let ceiling = Opened::at(&directory.path().join("ceiling.db")).await?;
    let gateway = Server::gateway(semel, &["--upstream", target], true).await?;
    let board = keyed("SQLite", wrk, &ceiling.direct, &gateway, effort).await?;
    ceiling.store.close().await;
    Ok(board)
}

async fn keyed_on_postgres(semel: &Path, wrk: &Wrk, target: &str, effort: Effort) -> Result<Board> {
    let cluster = Cluster::reach().await?;
    let store = Arc::new(PostgresStore::connect(cluster.url()).await?);
    let direct = Arc::new(Direct::new(store.clone()).await?);
    let gateway = Server::gateway(semel, &["--upstream", target, "--store", cluster.url()], false).await?;
    let board = keyed("Postgres", wrk, &direct, &gateway, effort).await;
    drop(gateway);
    store.close().await;
    cluster.leave().await?;
    board
}

async fn keyed(
    engine: &str,
    wrk: &Wrk,
    ceiling: &Arc<Direct>,
    gateway: &Server,
    effort: Effort,
) -> Result<Board> {
    let (store, new) = (format!("the {engine} store alone"), format!("Semel on {engine}, new keys"));
    let (replay, unkeyed) = ("Semel, replays", "Semel, no key");
    let mut board = Board::new(format!("Gateway on {engine}, POST of 1 KB"), "req/s").against(&store);
    wrk.window(&gateway.address, Traffic::Replays(KEYS), Duration::from_secs(1)).await?;
    for _ in 0..effort.rounds {
        board.add(&store, load::window(ceiling, CALLERS, effort).await?);
        board.add(&new, wrk.window(&gateway.address, Traffic::NewKeys, effort.window).await?);
        board.add(replay, wrk.window(&gateway.address, Traffic::Replays(KEYS), effort.window).await?);
        board.add(unkeyed, wrk.window(&gateway.address, Traffic::Post, effort.window).await?);
    }
    let share = 100.0 * board.median(&new) / board.median(&store);
    board.at_least(format!("Gateway on {engine}, new keys: share of the store's ceiling"), share, 50.0, " %");
    let share = 100.0 * board.median(replay) / board.median(unkeyed);
    board.at_least(format!("Gateway on {engine}, replays: share of unkeyed"), share, 70.0, " %");
    board.note("The store's waits are of single verbs; the gateway's are of whole requests, two verbs and the upstream.");
    Ok(board)
}
