//! Spawning and sleeping, behind a seam: the same code runs on tokio and in a simulation.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

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

/// The tokio runtime that is current where it is used.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug)]
pub struct Tokio {
    start: tokio::time::Instant,
}

#[cfg(feature = "tokio")]
impl Tokio {
    /// Counts time from now.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
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
        tokio::spawn(work);
    }

    fn sleep(&self, wait: Duration) -> Boxed<()> {
        Box::pin(tokio::time::sleep(wait))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
