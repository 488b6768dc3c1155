//! The records of an animal: a map, and a file with each of its changes.
//!
//! One lock makes a change one step. A store can be switched off from outside, by a file beside it,
//! to see what a service does without.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::ledger::{append, read};
use super::service::Answer;

/// What is known of an operation.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) print: String,
    /// Grows with each attempt.
    pub(super) token: u64,
    pub(super) since: SystemTime,
    pub(super) state: State,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum State {
    Running,
    Done(Answer),
    Free,
}

/// The store cannot be reached.
#[derive(Debug)]
pub(super) struct Away;

pub(super) struct Store {
    entries: Mutex<HashMap<String, Entry>>,
    journal: Option<PathBuf>,
    switch: PathBuf,
}

impl Entry {
    pub(super) fn taken(print: String) -> Self {
        Self { print, token: 1, since: SystemTime::now(), state: State::Running }
    }

    /// A new attempt.
    pub(super) fn take(&mut self) {
        *self = Self { token: self.token + 1, ..Self::taken(self.print.clone()) };
    }

    /// A stale attempt, or a second end, changes nothing.
    pub(super) fn end(&mut self, token: u64, state: State) {
        if self.token == token && self.state == State::Running {
            self.state = state;
        }
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed().unwrap_or_default()
    }

    /// Whether it still counts. What runs is never forgotten.
    pub(super) fn is_current(&self, memory: Duration) -> bool {
        self.state == State::Running || self.age() < memory
    }
}

impl Store {
    pub(super) fn open(home: &Path, durable: bool) -> Self {
        let journal = durable.then(|| journal(home));
        let lines: Vec<(String, Entry)> = journal.as_deref().map(read).unwrap_or_default();
        Self { entries: Mutex::new(lines.into_iter().collect()), journal, switch: switch(home) }
    }

    /// One step: nobody sees the record between what `step` saw and what it left.
    pub(super) fn change<T>(
        &self,
        operation: &str,
        step: impl FnOnce(&mut Option<Entry>) -> T,
    ) -> Result<T, Away> {
        self.step(operation, step, self.journal.as_deref())
    }

    /// The same in memory only.
    pub(super) fn change_unwritten<T>(
        &self,
        operation: &str,
        step: impl FnOnce(&mut Option<Entry>) -> T,
    ) -> Result<T, Away> {
        self.step(operation, step, None)
    }

    /// Stores the answer of this attempt, if it is still the attempt that counts. Does not give up.
    pub(super) async fn complete(&self, operation: &str, token: u64, answer: Answer) {
        self.end(operation, token, State::Done(answer)).await;
    }

    pub(super) async fn release(&self, operation: &str, token: u64) {
        self.end(operation, token, State::Free).await;
    }

    pub(super) fn running(&self) -> Vec<String> {
        let entries = self.entries();
        let running = entries.iter().filter(|(_, entry)| entry.state == State::Running);
        running.map(|(operation, _)| operation.clone()).collect()
    }

    async fn end(&self, operation: &str, token: u64, state: State) {
        let end = |entry: &mut Option<Entry>| {
            if let Some(entry) = entry {
                entry.end(token, state.clone());
            }
        };
        while let Err(Away) = self.change(operation, end) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn step<T>(
        &self,
        operation: &str,
        step: impl FnOnce(&mut Option<Entry>) -> T,
        journal: Option<&Path>,
    ) -> Result<T, Away> {
        let mut entries = self.entries();
        if self.switch.exists() {
            return Err(Away);
        }
        let before = entries.get(operation).cloned();
        let mut entry = before.clone();
        let told = step(&mut entry);
        if let Some(entry) = entry.filter(|entry| before.as_ref() != Some(entry)) {
            if let Some(journal) = journal {
                append(journal, &(operation, &entry));
            }
            entries.insert(operation.into(), entry);
        }
        Ok(told)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn journal(home: &Path) -> PathBuf {
    home.join("journal")
}

/// While this file exists, the store is away.
pub(super) fn switch(home: &Path) -> PathBuf {
    home.join("store-is-away")
}
