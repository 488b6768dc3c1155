//! Waiting for an attempt that runs in this process: its end wakes whoever waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::OperationId;

/// The bells of operations somebody waits for. An operation nobody waits for has none.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<OperationId, Arc<Notify>>>);

/// Keeps an operation's bell hung while somebody waits; the last one takes it down.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    operation: OperationId,
    /// Always there until dropped.
    bell: Option<Arc<Notify>>,
}

impl Waiters {
    pub(crate) fn listen(&self, operation: OperationId) -> Waiting<'_> {
        let bell = self.lock().entry(operation).or_default().clone();
        Waiting { waiters: self, operation, bell: Some(bell) }
    }

    /// Rings: everybody who waits looks again.
    pub(crate) fn wake(&self, operation: OperationId) {
        if let Some(bell) = self.lock().get(&operation) {
            bell.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OperationId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// The next ring. Take it *before* looking at the record, or the ring may be missed.
    pub(crate) fn ring(&self) -> Option<OwnedNotified> {
        self.bell.clone().map(Notify::notified_owned)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut bells = self.waiters.lock();
        // Let go under the lock, so that of two who leave together the second sees that it is the last.
        self.bell = None;
        if bells.get(&self.operation).is_some_and(|bell| Arc::strong_count(bell) == 1) {
            bells.remove(&self.operation);
        }
    }
}
