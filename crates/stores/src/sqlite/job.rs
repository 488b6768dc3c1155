//! A call that waits for the writer, and its answer.

use std::path::Path;

use semel_core::error::Error;
use semel_core::mutant;
use tokio::sync::oneshot;

use super::error::Fault;
use super::work::Work;

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum End {
    /// On disk.
    Committed,
    /// Nothing of it was applied, and nothing will be.
    NotApplied(Fault),
    /// It was rolled back because of one job; the others are not to blame.
    Spoiled(Fault),
    /// Its COMMIT failed in a way that a crash could still turn into success.
    MaybeApplied(Fault),
}

/// One call, as the writer sees it.
pub(super) trait Job: Send {
    /// Roughly how much it writes.
    fn bytes(&self) -> usize;

    /// Whether it must not run on a store that went back.
    fn needs_sound_store(&self) -> bool;

    /// Does it, in an open transaction. May be done again after that was rolled back.
    fn run(&mut self, work: &mut Work<'_>) -> Result<(), Fault>;

    /// Its answer is this error: it wrote nothing.
    fn refuse(&mut self, error: Error);

    /// Tells the caller, who may have gone.
    fn answer(self: Box<Self>, end: &End, path: &Path);
}

/// A job made of a closure.
pub(super) struct Task<T, F> {
    run: F,
    bytes: usize,
    needs_sound_store: bool,
    held: Option<Result<T, Error>>,
    wrote: bool,
    caller: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T, F> Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Work<'_>) -> Result<T, Fault> + Send + 'static,
{
    pub(super) fn new(run: F, bytes: usize, caller: oneshot::Sender<Result<T, Error>>) -> Self {
        Self { run, bytes, needs_sound_store: true, held: None, wrote: false, caller: Some(caller) }
    }

    /// Runs also on a store that went back.
    pub(super) fn on_any_store(self) -> Self {
        Self { needs_sound_store: false, ..self }
    }

    fn send(&mut self, answer: Result<T, Error>) {
        if let Some(caller) = self.caller.take() {
            // The caller may have been cancelled; the work is done all the same.
            let _ = caller.send(answer);
        }
    }
}

impl<T, F> Job for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Work<'_>) -> Result<T, Fault> + Send + 'static,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn needs_sound_store(&self) -> bool {
        self.needs_sound_store
    }

    fn run(&mut self, work: &mut Work<'_>) -> Result<(), Fault> {
        let before = work.writes();
        let answer = (self.run)(work)?;
        self.wrote = work.writes() > before;
        if mutant::on("sqlite-answers-before-commit") {
            self.send(Ok(answer));
            return Ok(());
        }
        self.held = Some(Ok(answer));
        Ok(())
    }

    fn refuse(&mut self, error: Error) {
        self.held = Some(Err(error));
    }

    fn answer(mut self: Box<Self>, end: &End, path: &Path) {
        let answer = match (self.held.take(), end) {
            // Its own failure, which no commit changes.
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(answer)), End::Committed) => Ok(answer),
            // What it read may have come from the transaction that failed, so it has no answer; but
            // only what it wrote can come back.
            (_, End::MaybeApplied(fault)) if self.wrote => Err(fault.tell(path).maybe_applied()),
            (_, End::NotApplied(fault) | End::Spoiled(fault) | End::MaybeApplied(fault)) => {
                Err(fault.tell(path))
            }
            // It was not run, and the transaction committed: cannot happen. The caller is told that
            // the writer has no answer.
            (None, End::Committed) => return,
        };
        self.send(answer);
    }
}
