//! Counting what was decided, and what still runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::mutant;
use crate::policy::DEFAULTS;

/// Most routes whose latency is remembered.
const ROUTES_MAX: usize = 10_000;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start of the process, one per decision.
        #[derive(Debug, Default)]
        pub struct Tally {
            $(pub(crate) $name: AtomicU64,)*
            latencies: Mutex<HashMap<Box<str>, Duration>>,
        }

        impl Tally {
            $($(#[$doc])* pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            })*

            /// Every count with its name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name()),)*]
            }
        }
    };
}

counters! {
    /// Attempts granted.
    granted,
    /// Outcomes replayed.
    replayed,
    /// Duplicates told to come back.
    in_flight,
    /// Keys used with another request.
    mismatched,
    /// Callers told that the outcome is unknown.
    unknown,
    /// Calls refused because the store was away.
    unavailable,
    /// Calls refused because too many operations were under way.
    turned_away,
    /// Effects run without protection.
    unprotected,
    /// Outcomes refused because their attempt no longer counted: possible double effects.
    refused_outcomes,
    /// Claims withdrawn because their answer never came.
    withdrawn,
    /// Outcomes that had to be stored in the background.
    stored_late,
    /// Outcomes too large for the store, of which only the status was stored.
    bodies_refused,
    /// Keys that look guessable.
    weak_keys,
}

impl Tally {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Folds one run into a route's smoothed latency.
    pub(crate) fn observe(&self, route: &str, took: Duration) {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(smooth) = latencies.get_mut(route) {
            *smooth = (*smooth * 7 + took) / 8;
        } else if latencies.len() < ROUTES_MAX {
            latencies.insert(route.into(), took);
        }
    }

    /// When a duplicate should come back: about as long as the route takes, within bounds.
    pub(crate) fn retry_after(&self, route: &str) -> Duration {
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let smooth = latencies.get(route).copied().unwrap_or(DEFAULTS.retry_after_min);
        smooth.clamp(DEFAULTS.retry_after_min, DEFAULTS.retry_after_max)
    }
}

/// Which tasks are still under way.
#[derive(Default)]
pub(crate) struct Track(Arc<Tracked>);

#[derive(Default)]
struct Tracked {
    count: AtomicUsize,
    /// How many of them are operations.
    operations: AtomicUsize,
    /// How many of those wait for another of their key.
    waiting: AtomicUsize,
    idle: Notify,
}

/// One task under way, wherever it goes.
pub(crate) struct Running {
    tracked: Arc<Tracked>,
    is_operation: bool,
}

/// One call under way that has not become a task.
pub(crate) struct Calling<'a> {
    tracked: &'a Arc<Tracked>,
    is_operation: bool,
}

impl Track {
    pub(crate) fn enter(&self) -> Running {
        self.call().stay()
    }

    /// As [`enter`](Self::enter), for what may end where it began: it touches one counter less.
    pub(crate) fn call(&self) -> Calling<'_> {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        Calling { tracked: &self.0, is_operation: false }
    }

    /// A call that may become an operation, if there are fewer than `max`.
    pub(crate) fn operation(&self, max: usize) -> Option<Calling<'_>> {
        let max = if mutant::on("operations-unlimited") { usize::MAX } else { max };
        if !take(&self.0.operations, max) {
            return None;
        }
        self.0.count.fetch_add(1, Ordering::AcqRel);
        Some(Calling { tracked: &self.0, is_operation: true })
    }

    /// A place to wait, if fewer than `max` wait.
    pub(crate) fn wait(&self, max: usize) -> Option<Waits<'_>> {
        let max = if mutant::on("waiters-unlimited") { usize::MAX } else { max };
        take(&self.0.waiting, max).then(|| Waits(&self.0.waiting))
    }

    pub(crate) fn operations(&self) -> usize {
        self.0.operations.load(Ordering::Acquire)
    }

    pub(crate) fn running(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    pub(crate) async fn empty(&self) {
        loop {
            let idle = self.0.idle.notified();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Counts one more if there are fewer than `max`. A refusal is never counted, not even for a moment: it would
/// hide a place that is free.
fn take(count: &AtomicUsize, max: usize) -> bool {
    let more = |count| (count < max).then_some(count + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// One call that waits.
pub(crate) struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tracked {
    fn leave(&self, is_operation: bool) {
        if is_operation {
            self.operations.fetch_sub(1, Ordering::AcqRel);
        }
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }
}

impl Calling<'_> {
    /// Counts on as a task.
    pub(crate) fn stay(self) -> Running {
        let Self { tracked, mut is_operation } = self;
        std::mem::forget(self);
        if is_operation && mutant::on("running-operation-uncounted") {
            tracked.operations.fetch_sub(1, Ordering::AcqRel);
            is_operation = false;
        }
        Running { tracked: tracked.clone(), is_operation }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.tracked.leave(self.is_operation);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tracked.leave(self.is_operation);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_refusal_hides_no_free_place() {
        // G-19
        let (track, done) = (Track::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert!(track.operation(0).is_none());
                    }
                });
            }
            let refused = (0..200_000).filter(|_| track.operation(1).is_none()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(refused, 0, "nobody else was let in");
        });
        assert_eq!((track.operations(), track.running()), (0, 0));
    }
}
