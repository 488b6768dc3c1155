//! Writing messages in the caller's own transaction.

use rusqlite::Connection;
use semel_core::error::{Error, Kind};
use semel_core::message::Message;
use semel_core::outbox::{self, lane_of};
use semel_core::{Clock, SystemClock, Timestamp, mutant};

use super::row;
use crate::sqlite::error::Fault;

/// Writes messages in the transaction that is open on this connection: they are published if, and only if,
/// it commits. A savepoint will do, too: what is rolled back to it was never written.
///
/// The database must be one that a [`SqliteStore`](crate::sqlite::SqliteStore) or a
/// [`SqliteOutbox`](super::SqliteOutbox) was opened on once, which made the tables. The order of an ordering
/// key is the order of commits.
///
/// Refused, with nothing written: a message that could not be published later, a connection with no
/// transaction, and one that does not sync its commits: after a power failure the message would be out and
/// what it tells of would not have happened.
pub fn enqueue(transaction: &Connection, messages: &[Message]) -> Result<(), Error> {
    enqueue_at(transaction, messages, SystemClock.now())
}

pub(in crate::sqlite) fn enqueue_at(
    conn: &Connection,
    messages: &[Message],
    now: Timestamp,
) -> Result<(), Error> {
    if !mutant::on("sqlite-outbox-unchecked") {
        outbox::check(messages)?;
    }
    must_be_in_transaction(conn)?;
    must_sync(conn)?;
    write(conn, messages, now).map_err(|fault| tell(conn, &fault))
}

fn write(conn: &Connection, messages: &[Message], now: Timestamp) -> Result<(), Fault> {
    if messages.is_empty() {
        return Ok(());
    }
    // Asked in the same transaction: whoever changes their number has the write lock.
    let lanes: u16 = conn.prepare_cached(include_str!("sql/lanes.sql"))?.query_row([], |row| row.get(0))?;
    for message in messages {
        let sql = match message.deliver_after {
            Some(_) if !mutant::on("sqlite-outbox-never-delays") => include_str!("sql/write_delayed.sql"),
            _ => include_str!("sql/write.sql"),
        };
        row::insert(conn, sql, lane_of(message, lanes), now, message)?;
    }
    if mutant::on("sqlite-outbox-commits-by-itself") {
        conn.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
    }
    Ok(())
}

/// Outside of one, each statement would commit by itself.
pub(in crate::sqlite) fn must_be_in_transaction(conn: &Connection) -> Result<(), Error> {
    if conn.is_autocommit() {
        let text = "there is no open transaction on this connection; begin one with BEGIN IMMEDIATE";
        return Err(Error::new(Kind::Misconfigured, text));
    }
    Ok(())
}

/// `synchronous` of at least FULL: SQLite's own default.
pub(in crate::sqlite) fn must_sync(conn: &Connection) -> Result<(), Error> {
    let level =
        conn.prepare_cached("PRAGMA synchronous").and_then(|mut ask| ask.query_row([], |row| row.get(0)));
    let level: i64 = level.map_err(|error| tell(conn, &error.into()))?;
    if level < 2 {
        let text = "this connection does not sync its commits, so a power failure could undo what was already \
                    told to others; use PRAGMA synchronous=FULL on it";
        return Err(Error::new(Kind::Misconfigured, text));
    }
    Ok(())
}

/// What a failure on the caller's connection means.
pub(in crate::sqlite) fn tell(conn: &Connection, fault: &Fault) -> Error {
    let path = std::path::PathBuf::from(conn.path().unwrap_or(":memory:"));
    if fault.is_missing_table() {
        let text = format!(
            "the database {} has no tables of Semel; open it once with SqliteStore::open or \
             SqliteOutbox::open, which make them",
            path.display()
        );
        return Error::new(Kind::Schema, text).because(fault.clone());
    }
    fault.tell(&path)
}
