//! Spawning and sleeping, behind a seam: the same code runs on tokio and in a simulation.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{Either, poll_immediate, select};

/// A boxed future that can move between threads.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What Semel needs of an async runtime.
pub trait Runtime: Send + Sync + 'static {
    /// Runs a future to its end, whoever else goes away.
    fn spawn(&self, work: Boxed<()>);

    /// Ends after `wait`.
    fn sleep(&self, wait: Duration) -> Boxed<()>;

    /// Monotonic time since some fixed moment. Never the wall clock.
    fn elapsed(&self) -> Duration;
}

/// Awaits `work` for no longer than `wait`; gives it back unfinished if that passes. Work that is
/// ready at once costs no timer.
pub(crate) async fn within<Work: Future + Unpin>(
    runtime: &dyn Runtime,
    wait: Duration,
    mut work: Work,
) -> Result<Work::Output, Work> {
    if let Some(done) = poll_immediate(&mut work).await {
        return Ok(done);
    }
    match select(work, runtime.sleep(wait)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(((), work)) => Err(work),
    }
}

/// The tokio runtime that is current where it is used.
#[cfg(feature = "tokio")]
#[derive(Clone, Debug)]
pub struct Tokio {
    start: tokio::time::Instant,
    home: Option<tokio::runtime::Handle>,
}

#[cfg(feature = "tokio")]
impl Tokio {
    /// Counts time from now. Made inside a runtime, it spawns there also from threads outside.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now(), home: tokio::runtime::Handle::try_current().ok() }
    }
}

#[cfg(feature = "tokio")]
impl Default for Tokio {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "tokio")]
impl Runtime for Tokio {
    fn spawn(&self, work: Boxed<()>) {
        let here = tokio::runtime::Handle::try_current().ok();
        match here.as_ref().or(self.home.as_ref()) {
            Some(handle) => drop(handle.spawn(work)),
            // What is lost here was a courtesy (a claim to withdraw): effects are spawned by callers
            // that are polled, and so inside a runtime.
            None => tracing::error!("a task was dropped: there is no tokio runtime to run it"),
        }
    }

    fn sleep(&self, wait: Duration) -> Boxed<()> {
        Box::pin(tokio::time::sleep(wait))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
