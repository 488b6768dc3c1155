//! What a relay has done, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::outbox::Settled;

/// Counters of one relay. They only grow, but for `lanes`.
#[derive(Debug, Default)]
pub struct Tally {
    /// Lanes held now.
    pub lanes: AtomicU64,
    /// Messages saved as published.
    pub published: AtomicU64,
    /// Messages set aside to be tried again.
    pub set_aside: AtomicU64,
    /// Messages set aside because an earlier one of their key is.
    pub behind: AtomicU64,
    /// Messages that became dead letters.
    pub dead: AtomicU64,
    /// Times the sink was found down.
    pub downs: AtomicU64,
    /// Lanes lost to somebody else, or given up because the lease could not be renewed.
    pub lost: AtomicU64,
}

impl Tally {
    pub(super) fn add(&self, settled: &[Settled]) {
        let count = |wanted: fn(&Settled) -> bool| settled.iter().filter(|one| wanted(one)).count() as u64;
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        add(&self.published, count(|one| *one == Settled::Sent));
        add(&self.set_aside, count(|one| matches!(one, Settled::Later { .. })));
        add(&self.behind, count(|one| *one == Settled::Behind));
        add(&self.dead, count(|one| matches!(one, Settled::Dead { .. })));
    }
}
