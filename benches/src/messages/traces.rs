//! What all the publishing left behind in PostgreSQL's table of messages.

use anyhow::Result;

use super::shop::connect;
use crate::board::Board;

/// Of all parts of the table together: ever inserted, updated, deleted, and dead now, as the server counts.
const COUNTED: &str = "SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint, \
                       coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables AS t \
                       WHERE t.relid IN (SELECT relid FROM pg_partition_tree('semel_outbox'))";
/// Dead rows found by reading every page, and the bytes of the table with its indexes.
const FOUND: &str = "SELECT coalesce(sum((pgstattuple(relid)).dead_tuple_count), 0)::bigint, \
                     coalesce(sum(pg_total_relation_size(relid)), 0)::bigint \
                     FROM pg_partition_tree('semel_outbox') WHERE isleaf";

pub(super) async fn measure(url: &str) -> Result<Board> {
    let mut board = Board::new("Postgres: what the relay left in the table of messages", "rows");
    let client = connect(url).await?;
    // Counts of sessions that have ended are there; of others they come within a second or so.
    let row = client.query_one(COUNTED, &[]).await?;
    let (inserted, changed, dead): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    board.add("messages written", inserted as f64);
    board.add("rows updated or deleted", changed as f64);
    board.add("dead rows, as the server counts", dead as f64);
    board.at_most(format!("Dead rows after {inserted} messages"), dead as f64, 0.0, "");
    match client.batch_execute("CREATE EXTENSION IF NOT EXISTS pgstattuple").await {
        Ok(()) => {
            let row = client.query_one(FOUND, &[]).await?;
            let (found, bytes): (i64, i64) = (row.get(0), row.get(1));
            board.add("dead rows, page by page", found as f64);
            board.at_most("Dead rows found page by page", found as f64, 0.0, "");
            board.note(format!("The table and its indexes take {:.1} MiB.", bytes as f64 / (1 << 20) as f64));
        }
        Err(_) => board.note("SKIPPED page by page: the extension pgstattuple is not installed."),
    }
    Ok(board)
}
