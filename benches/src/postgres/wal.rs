//! How much log a request writes, and how many completions stay on their page.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use sqlx::postgres::PgPool;

use super::one_statement::OneStatement;
use super::{CALLERS, STORE, UNPINGED};
use crate::Effort;
use crate::board::Board;
use crate::load::{self, Contestant, Direct};

pub(super) async fn measure(
    effort: Effort,
    watch: &PgPool,
    ours: &Arc<Direct>,
    pattern: &Arc<OneStatement>,
) -> Result<Board> {
    let mut board = Board::new("Postgres: log written per request, 300 B body", "B/request");
    let stretch = |full_ms, quick_ms| Effort {
        warm_up: Duration::ZERO,
        window: Duration::from_millis(effort.pick(full_ms, quick_ms)),
        ..effort
    };
    let (first, between, then) = (stretch(500, 50), stretch(6000, 200), stretch(2000, 200));
    for _ in 0..effort.rounds.min(3) {
        bytes(&mut board, STORE, watch, ours, [first, between, then]).await?;
        bytes(&mut board, UNPINGED, watch, pattern, [first, between, then]).await?;
    }
    board.note(
        "After a checkpoint the first change of a page writes the whole page; the steady state begins when the \
         pages in use have been written once.",
    );
    for (name, table) in [(STORE, "semel_operation"), (UNPINGED, "bench_operation")] {
        board.note(format!("{name}: {}", table_facts(watch, table).await?));
    }
    Ok(board)
}

/// The first stretch after a checkpoint, and one later; what lies between is not counted.
async fn bytes<C: Contestant>(
    board: &mut Board,
    name: &str,
    watch: &PgPool,
    contestant: &Arc<C>,
    [first, between, then]: [Effort; 3],
) -> Result<()> {
    sqlx::raw_sql("CHECKPOINT").execute(watch).await?;
    let start = position(watch).await?;
    load::window(contestant, CALLERS, first).await?;
    board.add(&format!("{name}, after a checkpoint"), per_request(start, position(watch).await?));
    load::window(contestant, CALLERS, between).await?;
    let start = position(watch).await?;
    load::window(contestant, CALLERS, then).await?;
    board.add(&format!("{name}, steady"), per_request(start, position(watch).await?));
    Ok(())
}

/// Bytes logged and tokens given so far. Every request takes one token.
async fn position(watch: &PgPool) -> Result<(i64, i64)> {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, last_value FROM semel_token";
    Ok(sqlx::query_as(sql).fetch_one(watch).await?)
}

fn per_request(from: (i64, i64), to: (i64, i64)) -> f64 {
    (to.0 - from.0) as f64 / (to.1 - from.1).max(1) as f64
}

async fn table_facts(watch: &PgPool, table: &str) -> Result<String> {
    let sql = "SELECT format('%s %% of completions stayed on their page (HOT); %s rows, table %s, indexes %s', \
               round(100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1), 1), n_tup_ins, \
               pg_size_pretty(pg_table_size(relid)), pg_size_pretty(pg_indexes_size(relid))) \
               FROM pg_stat_user_tables WHERE relname = $1";
    Ok(sqlx::query_scalar(sql).bind(table).fetch_one(watch).await?)
}
