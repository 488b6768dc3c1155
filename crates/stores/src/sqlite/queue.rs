//! A bounded queue between many async callers and one thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Work that waits for a thread.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    max: usize,
}

struct State<T> {
    waiting: VecDeque<T>,
    open: bool,
    /// The thread waits to be woken. While it works, waking it would be a system call for nothing.
    asleep: bool,
}

/// Why nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// As many as the queue takes are waiting.
    Full,
    /// The thread is gone or going.
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(max: usize) -> Self {
        let state = State { waiting: VecDeque::new(), open: true, asleep: false };
        Self { state: Mutex::new(state), ready: Condvar::new(), max }
    }

    /// Never blocks.
    pub(super) fn push(&self, item: T) -> Result<(), Refused> {
        let mut state = self.lock();
        if !state.open {
            return Err(Refused::Closed);
        }
        if state.waiting.len() >= self.max {
            return Err(Refused::Full);
        }
        state.waiting.push_back(item);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits for work, then takes the first item and as many more as `fits` accepts. `false`: the
    /// queue is closed and empty.
    pub(super) fn take(&self, into: &mut Vec<T>, mut fits: impl FnMut(&T) -> bool) -> bool {
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if !state.open {
                return false;
            }
            state.asleep = true;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        into.extend(state.waiting.pop_front());
        while state.waiting.front().is_some_and(&mut fits) {
            into.extend(state.waiting.pop_front());
        }
        true
    }

    /// Takes no more. What waits is still worked off.
    pub(super) fn close(&self) {
        self.lock().open = false;
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nobody panics while holding it; if so, the queue itself is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self) {
        self.close();
        let abandoned = std::mem::take(&mut self.lock().waiting);
        drop(abandoned);
    }
}

/// Held by the working thread. When it ends, also by a panic, callers are told instead of left
/// waiting.
pub(super) struct Worker<'a, T>(pub(super) &'a Queue<T>);

impl<T> Drop for Worker<'_, T> {
    fn drop(&mut self) {
        self.0.clear();
    }
}
