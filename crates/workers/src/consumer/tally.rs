//! Counts of what a consumer did, for people and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a consumer did since it was made.
#[derive(Debug, Default)]
pub struct Tally {
    /// Effects that happened.
    pub applied: AtomicU64,
    /// Deliveries whose effect had happened before.
    pub duplicates: AtomicU64,
    /// Deliveries that reused an id for something else.
    pub conflicts: AtomicU64,
    /// Deliveries that came too late for their place in the order.
    pub stale: AtomicU64,
    /// Messages put behind another of their key.
    pub behind: AtomicU64,
    /// Messages set aside to be tried again.
    pub later: AtomicU64,
    /// Messages that became dead letters because they failed, or had no id.
    pub dead: AtomicU64,
    /// Batches that had to be taken apart.
    pub divided: AtomicU64,
    /// Batches that were refused because a partition had changed hands.
    pub fenced: AtomicU64,
}

impl Tally {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Deliveries that were settled, one way or another.
    pub fn settled(&self) -> u64 {
        let all = [
            &self.applied,
            &self.duplicates,
            &self.conflicts,
            &self.stale,
            &self.behind,
            &self.later,
            &self.dead,
        ];
        all.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}
