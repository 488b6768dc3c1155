//! The thread that keeps the log short and the witness current, so that no claim waits for either.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel_core::mutant;
use semel_core::store::Mark;

use super::error::Fault;
use super::generations::Learner;
use super::reader;
use super::shared::{CHECKPOINT_EVERY_PAGES, Shared, WentBack, Woken};
use super::witness::Witness;

/// The witness lags at most about this far behind.
const WITNESS_EVERY: Duration = Duration::from_secs(1);

/// Between some ids and the next, so that the writer finds a moment without a snapshot.
const LEARNING_PAUSE: Duration = Duration::from_millis(1);

/// A log longer than this is started over, for which the writer must pause for a moment.
const LOG_PAGES_MAX: u32 = 16_384;

/// A log longer than this is worth a warning: something keeps it from being started over.
const LOG_PAGES_WARN: u32 = 16 * LOG_PAGES_MAX;

/// Runs until the store closes.
pub(super) fn run(shared: Arc<Shared>, conn: Connection) {
    super::connect::be_patient(shared.options.busy_timeout);
    let mut witness_due = Instant::now();
    let mut length = 0;
    // Ids are learned a few at a time, so that the log does not wait for all of them.
    let mut learner = Learner::new(&shared.generations);
    let (mut learning, mut healthy) = (true, true);
    loop {
        let pause = witness_due.saturating_duration_since(Instant::now());
        let woken = shared.bell.wait(wait_for(learning, shared.finish_log.load(Ordering::Relaxed), pause));
        if woken == Woken::Rung {
            length = shorten_log(&shared, &conn, length);
        }
        let is_due = woken == Woken::Stopped || Instant::now() >= witness_due;
        if is_due {
            see(&shared, &conn);
            witness_due = Instant::now() + WITNESS_EVERY;
        }
        if woken == Woken::Stopped {
            return;
        }
        // A snapshot now would keep the log from being started over.
        let is_awaited = shared.finish_log.load(Ordering::Relaxed);
        if is_due || (!is_awaited && (learning || shared.generations.can_learn(shared.seen()))) {
            let learned = learner
                .learn(&conn)
                .and_then(|more| if is_due { learner.look_around(&conn).map(|()| more) } else { Ok(more) });
            if let (Err(fault), true) = (&learned, healthy) {
                let database = at(&shared);
                tracing::warn!(%database, %fault, "ids of old records cannot be read; until they can, claims are slow");
            }
            healthy = learned.is_ok();
            learning = learned.unwrap_or(false);
        }
    }
}

/// How long the bell is waited for. While the log is to be started over nothing can be learned, and with nobody who writes
/// that may last; the writer rings when it is done.
fn wait_for(learning: bool, is_awaited: bool, pause: Duration) -> Duration {
    if learning && !is_awaited { LEARNING_PAUSE } else { pause }
}

/// The length of the log in pages, and how many of them are in the database file.
pub(super) fn checkpoint(conn: &Connection) -> Result<(u32, u32), Fault> {
    // Passive: waits for nobody, and nobody waits for it.
    let mut statement = conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?;
    // A log that was never written reports -1 pages.
    let pages = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    Ok(statement.query_row([], |row| Ok((pages(row.get(1)?), pages(row.get(2)?))))?)
}

/// Moves the log into the database file while the writer goes on, and says how long the log is. It can
/// start over only at a moment when all of it has been moved; under load that moment never comes by
/// itself, so the writer is asked for it, once there is little left to move.
///
/// A crash here loses nothing: SQLite lets the log start over only when what was moved is synced.
fn shorten_log(shared: &Shared, conn: &Connection, before: u32) -> u32 {
    let (length, moved) = match checkpoint(conn) {
        Ok(pages) => pages,
        Err(fault) => {
            tracing::warn!(database = %at(shared), %fault, "the log could not be moved into the database");
            (0, 0)
        }
    };
    shared.log_was_moved_at(length);
    // What a reader holds back, the writer could not move either.
    if length >= LOG_PAGES_MAX && length.saturating_sub(moved) <= CHECKPOINT_EVERY_PAGES {
        shared.finish_log.store(true, Ordering::Relaxed);
    }
    if length >= LOG_PAGES_WARN && length / LOG_PAGES_MAX > before / LOG_PAGES_MAX {
        tracing::warn!(
            database = %at(shared), pages = length,
            "the log keeps growing: look for a process that holds a read transaction open"
        );
    }
    length
}

/// Remembers how far the store has come. While it is behind, the witness says that instead, so that others hear of it
/// and this process after a restart.
fn see(shared: &Shared, conn: &Connection) {
    let seen = shared.seen();
    if shared.place.check().is_err() {
        return;
    }
    let described = reader::describe(conn)
        .and_then(|store| reader::must_be(shared.store_id, store.store_id).map(|()| store));
    match described {
        Ok(store) => {
            let said = shared.witnesses.behind(shared.store_id);
            match compare(shared, seen, said, store.mark) {
                Ok(()) => save_witness(shared, store.mark),
                Err(went_back) => write_behind(shared, went_back),
            }
        }
        Err(fault) => {
            shared.note(&fault);
            tracing::warn!(database = %at(shared), %fault, "the store could not be looked at");
        }
    }
}

/// Judges a mark that was found by what had been seen before, here and by others.
pub(super) fn compare(shared: &Shared, seen: Mark, said: Option<Mark>, found: Mark) -> Result<(), WentBack> {
    if let Some(from) = said.filter(|from| from.epoch >= found.epoch) {
        shared.is_said_behind(from);
    }
    shared.judge(seen, found)?;
    if !mutant::on("sqlite-ledger-remembers-nothing") {
        shared.has_come_to(found);
    }
    Ok(())
}

/// Writes down that the store is behind, so that others hear of it and this process after a restart.
pub(super) fn write_behind(shared: &Shared, WentBack { behind, .. }: WentBack) {
    if !mutant::on("sqlite-behind-unwritten") {
        shared.witnesses.save(Witness { store_id: shared.store_id, mark: behind.from, behind: true });
    }
}

/// Writes down how far the store has come.
pub(super) fn save_witness(shared: &Shared, mark: Mark) {
    if !mutant::on("sqlite-witness-forgotten") {
        shared.witnesses.save(Witness { store_id: shared.store_id, mark, behind: false });
    }
}

fn at(shared: &Shared) -> std::path::Display<'_> {
    let path: &Path = shared.place.path();
    path.display()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_ids_left_to_read_and_a_log_that_waits_for_the_writer_the_keeper_waits_too() {
        let second = Duration::from_secs(1);
        assert_eq!(wait_for(true, false, second), LEARNING_PAUSE);
        assert_eq!(wait_for(true, true, second), second);
        assert_eq!(wait_for(false, false, second), second);
    }
}
