//! The Postgres store beside the usual pattern: one statement per request on a pool.

pub(crate) mod cluster;
mod one_statement;
mod sweep;
mod wal;

use std::sync::Arc;

use anyhow::Result;
use semel_stores::postgres::PostgresStore;
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::Effort;
use crate::board::Board;
use crate::load::{self, Direct};
use cluster::Cluster;
use one_statement::OneStatement;

const STORE: &str = "Semel";
/// One statement per request on a pool as it comes, which pings a connection before it lends it.
const PLAIN: &str = "sqlx pool";
/// The same without the ping.
const UNPINGED: &str = "sqlx pool, no pings";
const CALLERS: usize = 64;
const MORE_CALLERS: usize = 256;
const POOL: u32 = 16;

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let cluster = Cluster::reach().await?;
    let watch = PgPoolOptions::new().max_connections(2).connect(cluster.url()).await?;
    let store = Arc::new(PostgresStore::connect(cluster.url()).await?);
    let ours = Arc::new(Direct::new(store.clone()).await?);
    one_statement::make_table(&watch).await?;
    let boards = boards(effort, cluster.url(), &watch, &ours).await;
    store.close().await;
    watch.close().await;
    cluster.leave().await?;
    boards
}

async fn boards(effort: Effort, url: &str, watch: &PgPool, ours: &Arc<Direct>) -> Result<Vec<Board>> {
    let pool =
        |ping| PgPoolOptions::new().max_connections(POOL).min_connections(POOL).test_before_acquire(ping);
    let plain = Arc::new(OneStatement::new(pool(true).connect(url).await?));
    let unpinged = Arc::new(OneStatement::new(pool(false).connect(url).await?));

    let mut boards = Vec::new();
    for callers in [CALLERS, MORE_CALLERS] {
        let title = format!("Postgres: claim + complete, {callers} callers");
        let mut board = Board::new(title, "req/s").against(UNPINGED);
        for _ in 0..effort.rounds {
            board.add(PLAIN, load::window(&plain, callers, effort).await?);
            board.add(UNPINGED, load::window(&unpinged, callers, effort).await?);
            board.add(STORE, load::window(ours, callers, effort).await?);
        }
        if callers == CALLERS {
            board.note(format!(
                "sqlx: one statement per claim and per completion, {POOL} connections. {}",
                cluster::settings(watch).await?
            ));
            for name in [PLAIN, UNPINGED] {
                let times = board.median(STORE) / board.median(name);
                board.at_least(format!("Postgres store against {name}"), times, 3.5, "×");
            }
        }
        boards.push(board.print());
    }
    boards.push(wal::measure(effort, watch, ours, &unpinged).await?.print());
    for idle in [plain, unpinged] {
        idle.close().await;
    }
    boards.push(sweep::measure(effort, watch, ours).await?.print());
    Ok(boards)
}
