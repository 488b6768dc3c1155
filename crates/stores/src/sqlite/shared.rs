//! What the threads of a store have in common.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use semel_core::error::{Error, Kind};
use semel_core::store::Mark;

use super::Options;
use super::error::Fault;
use super::generations::Generations;
use super::place::Place;
use super::reader::Description;
use super::standing::{Behind, Standing};
use super::witness::Witnesses;

/// The log is moved into the database file whenever it has grown by this many pages. Few: SQLite
/// syncs the file only after a pass that no commit overtook, and what has not been synced by then
/// is synced at once, when the log starts over and everybody waits. Where syncs are slow, more
/// comes together meanwhile and the passes become longer by themselves.
pub(super) const CHECKPOINT_EVERY_PAGES: u32 = 128;

/// One per open store.
pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) witnesses: Witnesses,
    pub(super) options: Options,
    pub(super) store_id: [u8; 16],
    pub(super) bell: Bell,
    pub(super) generations: Generations,
    standing: Mutex<Standing>,
    checkpoint_at: AtomicU32,
    /// The keeper has moved nearly all of the log; the writer shall move the rest.
    pub(super) finish_log: AtomicBool,
}

/// The database is behind what was seen of it.
#[derive(Clone, Copy)]
pub(super) struct WentBack {
    found: Mark,
    pub(super) behind: Behind,
}

impl Shared {
    pub(super) fn new(
        place: Place,
        witnesses: Witnesses,
        options: Options,
        store: &Description,
        standing: Standing,
    ) -> Self {
        Self {
            place,
            witnesses,
            options,
            store_id: store.store_id,
            bell: Bell::default(),
            generations: Generations::new(store),
            standing: Mutex::new(standing),
            checkpoint_at: AtomicU32::new(CHECKPOINT_EVERY_PAGES),
            finish_log: AtomicBool::new(false),
        }
    }

    /// The furthest mark seen. Ask before reading the database's own: that one only grows, so a
    /// snapshot taken later and yet behind has gone back.
    pub(super) fn seen(&self) -> Mark {
        let Standing { seen, behind } = *self.standing();
        behind.map_or(seen, |behind| seen.max(behind.from))
    }

    /// Judges a mark that was found, by what had been seen before it was looked for. The error says why nothing is
    /// answered while the database is behind.
    pub(super) fn judge(&self, seen_before: Mark, found: Mark) -> Result<(), WentBack> {
        match self.standing().judge(seen_before, found) {
            None => Ok(()),
            Some(behind) => Err(WentBack { found, behind }),
        }
    }

    /// A mark was found in the database or committed to it. Never called for what was not.
    pub(super) fn has_come_to(&self, mark: Mark) {
        self.standing().has_come_to(mark);
        if self.generations.can_learn(mark) {
            self.bell.ring();
        }
    }

    /// Somebody else found the store behind this mark.
    pub(super) fn is_said_behind(&self, from: Mark) {
        self.standing().fall_behind(from, false);
    }

    /// What a look at the store ran into. If the file was found to hold another store, its contents were exchanged; this
    /// process then believes nothing there any more, also if its own store seems to be back, for it may have been put back
    /// from anywhere.
    pub(super) fn note(&self, fault: &Fault) {
        if fault.is_exchanged() && self.place.check().is_ok() {
            let mut standing = self.standing();
            let seen = standing.seen;
            standing.fall_behind(seen, true);
        }
    }

    /// What is said while the database is behind.
    pub(super) fn tell(&self, WentBack { found, behind: Behind { from, foreign } }: WentBack) -> Error {
        let at = self.place.path().display();
        let what = match foreign {
            true => "is not the one that was used at this place before".to_owned(),
            false => format!(
                "was restored from an older state: it is at epoch {}, token {}, and was seen at epoch {}, token {}",
                found.epoch, found.token, from.epoch, from.token
            ),
        };
        let text = format!(
            "the database {at} {what}; what was done since is forgotten, and a retry of it would run again. \
             Reconcile, then acknowledge the restore (semel store acknowledge --by NAME)"
        );
        Error::new(Kind::WentBack, text)
    }

    /// The writer tells how long the log is.
    pub(super) fn log_has(&self, pages: u32) {
        if pages >= self.checkpoint_at.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// The log is worth moving when it has grown beyond this length.
    pub(super) fn log_was_moved_at(&self, pages: u32) {
        self.checkpoint_at.store(pages.saturating_add(CHECKPOINT_EVERY_PAGES), Ordering::Relaxed);
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the keeper.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    changed: Condvar,
}

#[derive(Default)]
struct BellState {
    rung: bool,
    stopped: bool,
}

/// Why the keeper woke.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    Rung,
    Time,
    Stopped,
}

impl Bell {
    pub(super) fn ring(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.rung, true) {
            drop(state);
            self.changed.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn wait(&self, at_most: Duration) -> Woken {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopped {
                return Woken::Stopped;
            }
            if std::mem::take(&mut state.rung) {
                return Woken::Rung;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Woken::Time;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::*;

    #[test]
    fn a_file_that_was_away_for_a_moment_is_no_other_store() {
        // G-13
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("semel.db")).unwrap();
        let shared = &store.shared;
        shared.note(&Fault::displaced("no such file or directory"));
        assert!(shared.judge(shared.seen(), shared.seen()).is_ok());
        shared.note(&Fault::exchanged());
        assert!(shared.judge(shared.seen(), shared.seen()).is_err_and(|went_back| went_back.behind.foreign));
    }
}
