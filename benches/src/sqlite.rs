//! The embedded store beside the physical limit of the same disk.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use rusqlite::Connection;
use semel_stores::sqlite::SqliteStore;

use crate::board::Board;
use crate::copies::{self, records};
use crate::load::{self, Direct};
use crate::raw_log::RawLog;
use crate::{Effort, slow_disk};

pub(crate) const LOG: &str = "raw log";
const CALLERS: usize = 64;
const MORE_CALLERS: usize = 256;
/// Rows copied in one transaction. Large, because each one writes most pages of the index again.
const COPIES: i64 = 2_500_000;
/// Enough to keep what one transaction changes, and the index of ten million ids.
const COPYING_CACHE_KIB: i64 = 3 << 20;

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let directory = tempfile::tempdir()?;
    let sizes: [u64; 2] = effort.pick([1_000_000, 10_000_000], [5_000, 20_000]);
    let paths = sizes.map(|size| directory.path().join(format!("{size}.db")));
    for (size, path) in sizes.iter().zip(&paths) {
        fill(path, *size).await.with_context(|| format!("filling {}", path.display()))?;
    }
    let names = sizes.map(|size| format!("SQLite, {}", records(size)));
    let mut boards = Vec::new();
    let stores = [Opened::at(&paths[0]).await?, Opened::at(&paths[1]).await?];
    let log = Arc::new(RawLog::start()?);
    for callers in [CALLERS, MORE_CALLERS] {
        let title = format!("SQLite: claim + complete, {callers} callers");
        let mut board = Board::new(title, "req/s").against(LOG);
        for round in 0..effort.rounds {
            board.add(LOG, load::window(&log, callers, effort).await?);
            // Who follows the log has its dirty pages to share the disk with: they change places.
            for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                board.add(&names[at], load::window(&stores[at].direct, callers, effort).await?);
            }
        }
        if callers == CALLERS {
            judge(&mut board, &names);
        }
        boards.push(board.print());
    }
    for store in stores {
        store.store.close().await;
    }
    boards.push(slow_disk::measure(effort, &paths[0]).await?.print());
    Ok(boards)
}

fn judge(board: &mut Board, [few, many]: &[String; 2]) {
    let share = 100.0 * board.median(few) / board.median(LOG);
    board.at_least(format!("{few}: share of the raw log"), share, 12.0, " %");
    for name in [few, many] {
        let wait = board.latency(name);
        board.at_most(format!("{name}: p99 over p50"), wait.p99_ms / wait.p50_ms, 5.0, "×");
    }
    let change = 100.0 * (board.median(many) / board.median(few) - 1.0);
    board.within(format!("{many}: against {few}"), change, 15.0, " %");
}

/// A store, and the callers' way to it.
pub(crate) struct Opened {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) direct: Arc<Direct>,
}

impl Opened {
    pub(crate) async fn at(path: &Path) -> Result<Self> {
        let store = Arc::new(SqliteStore::open(path)?);
        let direct = Arc::new(Direct::new(store.clone()).await?);
        Ok(Self { store, direct })
    }
}

/// Makes a database of `count` completed operations. The ids are random and arrive in random order,
/// so that the index is as loose as one that grew by claims.
async fn fill(path: &Path, count: u64) -> Result<()> {
    let start = Instant::now();
    let Opened { store, direct } = Opened::at(path).await?;
    let lease = direct.claim().await?;
    direct.complete(lease).await?;
    store.close().await;

    let path = path.to_owned();
    tokio::task::spawn_blocking(move || copy(&path, count as i64)).await??;
    println!("{} made in {:.1} s", records(count), start.elapsed().as_secs_f64());
    Ok(())
}

fn copy(path: &Path, count: i64) -> Result<()> {
    let conn = Connection::open(path)?;
    // Nobody else is there and the file may be thrown away, so it need not survive a crash now.
    for (pragma, value) in [("journal_mode", "DELETE"), ("journal_mode", "OFF"), ("synchronous", "OFF")] {
        conn.pragma_update_and_check(None, pragma, value, |_| Ok(())).or_else(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => Ok(()),
            other => Err(other),
        })?;
    }
    conn.pragma_update(None, "cache_size", -COPYING_CACHE_KIB)?;
    let columns = conn
        .prepare("SELECT name FROM pragma_table_info('semel_operation')")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    let bits: u32 = conn.query_row("SELECT generation_bits FROM semel_meta", [], |row| row.get(0))?;
    let generation = format!("((one.token + n) >> {bits}) + 1");
    let changed = [
        ("token", "one.token + n"),
        ("id", "randomblob(32)"),
        ("nonce", "randomblob(16)"),
        ("generation", &generation),
    ];
    let source = "semel_operation AS one, \
                  (WITH RECURSIVE up (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM up WHERE n + 1 < ?2) SELECT n FROM up) \
                  WHERE one.token = ?3";
    let sql = copies::statement(&columns, &changed, source);
    let template: i64 = conn.query_row("SELECT max(token) FROM semel_operation", [], |row| row.get(0))?;
    let mut copy = conn.prepare(&sql)?;
    for from in (1..count).step_by(COPIES as usize) {
        copy.execute([from, (from + COPIES).min(count), template])?;
    }
    conn.execute("UPDATE semel_meta SET token = (SELECT max(token) FROM semel_operation)", [])?;
    // Now, and not behind the back of whoever is measured next.
    Ok(File::open(path)?.sync_all()?)
}
