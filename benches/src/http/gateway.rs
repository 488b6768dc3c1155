//! The gateway: without keys beside nginx, with new keys beside what its store can do, replays
//! beside unkeyed requests, and all of it beside the only other gateway there is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use semel_core::store::Filter;
use semel_core::{EffectStore, Token};
use semel_stores::postgres::PostgresStore;
use semel_stores::sqlite::SqliteStore;

use super::peers;
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
/// What fills caches and connections, and is not counted.
const WARM_UP: Duration = Duration::from_secs(1);

/// A part of the measurement; without any, all are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Word {
    Get,
    Post,
    Sqlite,
    Postgres,
    /// The other gateway.
    Peer,
}

pub(crate) async fn measure(effort: Effort, only: &[Word]) -> Result<Vec<Board>> {
    let wants = |word| only.is_empty() || only.contains(&word);
    let semel = super::build_semel().await?;
    let wrk = Wrk::ready().await?;
    let upstream = Server::part(&["bare"]).await?;
    let target = format!("http://{}", upstream.address);
    let mut boards = Vec::new();
    for (word, title, traffic, share) in [
        (Word::Get, "Gateway: GET", Traffic::Get, 75.0),
        (Word::Post, "Gateway: POST of 1 KB without a key", Traffic::Post, 65.0),
    ] {
        if !wants(word) {
            continue;
        }
        let nginx = Server::nginx(&upstream.address).await?;
        let gateway = Server::gateway(&semel, &["--upstream", &target], true).await?;
        let mut board = Board::new(title, "req/s").against(NGINX);
        for _ in 0..effort.rounds {
            for (name, server) in [(DIRECT, &upstream), (NGINX, &nginx), (GATEWAY, &gateway)] {
                board.add(name, wrk.window(server, traffic, effort.window).await?);
            }
        }
        let reached = 100.0 * board.median(GATEWAY) / board.median(NGINX);
        board.at_least(format!("{title}: share of nginx"), reached, share, " %");
        let tail = board.latency(GATEWAY).p99_ms / board.latency(NGINX).p99_ms;
        board.at_most(format!("{title}: p99 against nginx"), tail, 1.0, "×");
        boards.push(board.print());
    }
    if wants(Word::Sqlite) {
        boards.push(keyed_on_sqlite(&semel, &wrk, &target, effort).await?.print());
    }
    if wants(Word::Postgres) {
        boards.push(keyed_on_postgres(&semel, &wrk, &target, effort).await?.print());
    }
    if wants(Word::Peer) {
        boards.push(beside_the_other(&semel, &wrk, &target, effort).await?.print());
    }
    Ok(boards)
}

async fn keyed_on_sqlite(semel: &Path, wrk: &Wrk, target: &str, effort: Effort) -> Result<Board> {
    let directory = tempfile::tempdir()?;
    let small = Opened::at(&directory.path().join("small.db")).await?;
    let gateway = Server::gateway(semel, &["--upstream", target], true).await?;
    warm_up(wrk, &gateway).await?;
    let theirs = SqliteStore::open(gateway.database()?)?;
    let same = SqliteStore::open(directory.path().join("same.db"))?;
    let same = Arc::new(like_those_of(&theirs, Arc::new(same)).await?);
    theirs.close().await;
    let board = keyed("SQLite", wrk, [&small.direct, &same], &gateway, effort).await?;
    small.store.close().await;
    Ok(board)
}

async fn keyed_on_postgres(semel: &Path, wrk: &Wrk, target: &str, effort: Effort) -> Result<Board> {
    let cluster = Cluster::reach().await?;
    let store = Arc::new(PostgresStore::connect(cluster.url()).await?);
    let small = Arc::new(Direct::new(store.clone()).await?);
    let gateway = Server::gateway(semel, &["--upstream", target, "--store", cluster.url()], false).await?;
    warm_up(wrk, &gateway).await?;
    let same = Arc::new(like_those_of(&*store, store.clone()).await?);
    let board = keyed("Postgres", wrk, [&small, &same], &gateway, effort).await;
    drop(gateway);
    store.close().await;
    cluster.leave().await?;
    board
}

async fn warm_up(wrk: &Wrk, gateway: &Server) -> Result<()> {
    wrk.window(gateway, Traffic::Replays(KEYS), WARM_UP).await.map(drop)
}

/// Callers that write what a gateway writes: the same outcome, and evidence about as many leaves.
async fn like_those_of(written: &dyn EffectStore, store: Arc<dyn EffectStore>) -> Result<Direct> {
    let page = written.list(&Filter::default(), Token(0), 1).await?;
    let first = page.records.first().context("the gateway has written no record")?;
    let record = written.get(first.operation.id()).await?.context("a record of the gateway went away")?;
    Direct::like(store, &record)
}

async fn keyed(
    engine: &str,
    wrk: &Wrk,
    [small, same]: [&Arc<Direct>; 2],
    gateway: &Server,
    effort: Effort,
) -> Result<Board> {
    let (store, new) = (format!("the {engine} store alone"), format!("Semel on {engine}, new keys"));
    let store_of_small = format!("the {engine} store alone, small records");
    let (replay, unkeyed) = ("Semel, replays", "Semel, no key");
    let mut board = Board::new(format!("Gateway on {engine}, POST of 1 KB"), "req/s").against(&store);
    for _ in 0..effort.rounds {
        board.add(&store_of_small, load::window(small, CALLERS, effort).await?);
        board.add(&store, load::window(same, CALLERS, effort).await?);
        board.add(&new, wrk.window(gateway, Traffic::NewKeys, effort.window).await?);
        board.add(replay, wrk.window(gateway, Traffic::Replays(KEYS), effort.window).await?);
        board.add(unkeyed, wrk.window(gateway, Traffic::Post, effort.window).await?);
    }
    let share = |store: &str| 100.0 * board.median(&new) / board.median(store);
    let (share, of_small) = (share(&store), share(&store_of_small));
    board.at_least(format!("Gateway on {engine}, new keys: share of the store's ceiling"), share, 50.0, " %");
    let share = 100.0 * board.median(replay) / board.median(unkeyed);
    board.at_least(format!("Gateway on {engine}, replays: share of unkeyed"), share, 70.0, " %");
    board.note(format!(
        "The ceiling is the store alone, with 64 callers that write the gateway's own records ({}). Small records, as in \
         the boards of the stores, are {}; new keys reach {of_small:.0} % of that.",
        same.sizes(),
        small.sizes(),
    ));
    board.note("The store's waits are of single verbs; the gateway's are of whole requests, two verbs and the upstream.");
    Ok(board)
}

/// Semel on SQLite, which syncs every claim and outcome, and the other gateway, which keeps nothing through a crash: in
/// memory, or in a Redis that writes nothing to disk.
async fn beside_the_other(semel: &Path, wrk: &Wrk, target: &str, effort: Effort) -> Result<Board> {
    const OURS: &str = "Semel on SQLite, synced";
    const THEIRS: [&str; 2] =
        ["idempotent-proxy-server in memory", "idempotent-proxy-server on Redis, not synced"];
    let program = peers::proxy().await?;
    let baseline = format!("{}, new keys", THEIRS[0]);
    let mut board = Board::new("Gateways, POST of 1 KB", "req/s").against(&baseline);
    for _ in 0..effort.rounds {
        // Anew each time: no store may be measured by what earlier rounds left in it.
        let redis = Server::redis().await?;
        let in_memory = Server::proxy(&program, target, None).await?;
        let on_redis = Server::proxy(&program, target, Some(&redis)).await?;
        let gateway = Server::gateway(semel, &["--upstream", target], true).await?;
        for (name, server) in [(THEIRS[0], &in_memory), (THEIRS[1], &on_redis), (OURS, &gateway)] {
            wrk.window(server, Traffic::Replays(KEYS), WARM_UP).await?;
            let new = wrk.window(server, Traffic::NewKeys, effort.window).await?;
            board.add(&format!("{name}, new keys"), new);
            let replays = wrk.window(server, Traffic::Replays(KEYS), effort.window).await?;
            board.add(&format!("{name}, replays"), replays);
        }
    }
    for theirs in THEIRS {
        for what in ["new keys", "replays"] {
            let ahead = board.median(&format!("{OURS}, {what}")) / board.median(&format!("{theirs}, {what}"));
            board.at_least(format!("{OURS}, {what}, against {theirs}"), ahead, 1.0, "×");
        }
    }
    board.note(
        "idempotent-proxy-server compares no bodies, and forgets a key ten seconds after it was asked for.",
    );
    Ok(board)
}
