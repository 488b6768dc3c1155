//! Connections, set up the way their role needs.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use semel_core::error::{Error, Kind};
use semel_core::mutant;

use super::error::Fault;

/// The first release in which a checkpoint beside a writer cannot corrupt the file.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Page cache of a connection that writes, in KiB. Not larger: in a file under 1 GiB, a commit after
/// which a tree was rebalanced walks through all of it, and what is not here is in the system's cache.
const WRITER_CACHE_KIB: i64 = 16 * 1024;

/// Statements kept prepared; more than there are `.sql` files.
const STATEMENTS_MAX: usize = 96;

/// A relay moves the log into the database file whenever it has this many pages.
const RELAY_CHECKPOINT_PAGES: u32 = 4096;

/// The log file shrinks to this when it starts over.
const WAL_BYTES_KEPT: i64 = 128 << 20;

/// Pauses while another process holds the lock: short, because transactions here are short, and
/// rising, because others' need not be. SQLite's own back-off starves against a busy writer.
const PAUSE_MIN: Duration = Duration::from_micros(20);
pub(super) const PAUSE_MAX: Duration = Duration::from_micros(200);

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The one that writes.
    Writer,
    /// Reads only.
    Reader,
    /// Moves the log into the database file.
    Keeper,
    /// Reads and writes an outbox, perhaps where no store is open that has a keeper.
    Relay,
}

/// Refuses a SQLite that would not keep what Semel promises.
pub(super) fn check_library() -> Result<(), Error> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        let text = format!(
            "this program is linked with SQLite {}, which can corrupt a database that is written and \
             checkpointed at the same time; build with SQLite 3.51.3 or later",
            rusqlite::version()
        );
        return Err(Error::new(Kind::Misconfigured, text));
    }
    Ok(())
}

/// Opens a connection to a file that exists.
pub(super) fn open(path: &Path, role: Role, busy_timeout: Duration) -> Result<Connection, Fault> {
    // Never made here: a file deleted under a running store must stay missed.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    if conn.is_readonly("main")? {
        return Err(Fault::read_only());
    }
    PATIENCE.set(busy_timeout);
    conn.busy_handler(Some(wait_a_little))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    keep_a_log(&conn, busy_timeout)?;
    // An answered write survives the machine: the log is synced by every commit.
    let synchronous = if mutant::on("sqlite-sync-off") { "OFF" } else { "FULL" };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // The keeper checkpoints, so that no claim waits for it.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // A damaged page is an error, not a surprise further down.
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    match role {
        Role::Writer => conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?,
        Role::Reader => conn.pragma_update(None, "query_only", true)?,
        Role::Keeper => {}
        Role::Relay => conn.pragma_update(None, "wal_autocheckpoint", RELAY_CHECKPOINT_PAGES)?,
    }
    Ok(conn)
}

/// Stays with the file; asked for by every connection, because the file may be new. When several make the same
/// new file, SQLite gives all but one up at once, without asking the busy handler: two that wait for each
/// other would wait for ever.
fn keep_a_log(conn: &Connection, patience: Duration) -> rusqlite::Result<()> {
    let since = Instant::now();
    loop {
        match conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && since.elapsed() < patience =>
            {
                std::thread::sleep(PAUSE_MAX);
            }
            done => return done,
        }
    }
}

thread_local! {
    /// How long connections of this thread wait for a lock.
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static WAITING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// SQLite asks whether to try again for a lock. A connection is used by one thread at a time.
fn wait_a_little(times_before: i32) -> bool {
    let now = Instant::now();
    if times_before == 0 {
        WAITING_SINCE.set(Some(now));
    }
    let waited = WAITING_SINCE.get().map_or(Duration::ZERO, |since| now - since);
    if waited >= PATIENCE.get() {
        return false;
    }
    std::thread::sleep((PAUSE_MIN * (times_before.unsigned_abs() + 1).min(64)).min(PAUSE_MAX));
    true
}

/// How long this thread's connections wait for a lock from now on.
pub(super) fn be_patient(busy_timeout: Duration) {
    PATIENCE.set(busy_timeout);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_connection_does_not_take_the_page_cache_of_others() {
        // Set for all builds of this repository in .cargo/config.toml; another release may name it otherwise.
        let conn = Connection::open_in_memory().unwrap();
        let shared: bool = conn
            .query_row("SELECT sqlite_compileoption_used('ENABLE_MEMORY_MANAGEMENT')", [], |row| row.get(0))
            .unwrap();
        assert!(!shared);
    }

    #[test]
    fn every_connection_has_a_log_and_syncs_each_commit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("semel.db");
        std::fs::write(&path, "").unwrap();
        for role in [Role::Writer, Role::Reader, Role::Keeper] {
            let conn = open(&path, role, Duration::ZERO).unwrap();
            let pragma =
                |name| conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
            assert_eq!(pragma("journal_mode").unwrap(), "wal".to_owned().into());
            assert_eq!(pragma("synchronous").unwrap(), 2.into(), "FULL");
            assert_eq!(pragma("wal_autocheckpoint").unwrap(), 0.into());
        }
    }
}
