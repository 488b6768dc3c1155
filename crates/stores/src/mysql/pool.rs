//! A few connections shared by many calls. One that was left in the middle of something is not
//! given to the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::{Backoff, Nonce};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use super::connect::{Connector, Live};
use super::fault::{Again, Fault};

/// How often a transaction that lost a race, a deadlock or its connection is tried again.
const TRIES_MAX: u32 = 8;

/// What came of one try.
pub(super) enum Tried<T> {
    Answer(T),
    /// Somebody else was faster; look again.
    LostRace,
}

pub(super) struct Pool {
    connector: Arc<Connector>,
    idle: Mutex<Vec<Live>>,
    permits: Semaphore,
    size: usize,
    wait: Duration,
    limit: Duration,
}

impl Pool {
    pub(super) fn new(connector: Arc<Connector>, size: usize, wait: Duration, limit: Duration) -> Self {
        Self { connector, idle: Mutex::default(), permits: Semaphore::new(size), size, wait, limit }
    }

    /// For work on a store that may be used.
    pub(super) fn tries(&self) -> Tries<'_> {
        Tries {
            pool: self,
            backoff: Backoff::new(Nonce::random()),
            left: TRIES_MAX,
            waited: false,
            any: false,
        }
    }

    /// For work on a store that may have gone back.
    pub(super) fn tries_on_any(&self) -> Tries<'_> {
        Tries { any: true, ..self.tries() }
    }

    /// A connection to a store that may be used.
    async fn link(&self) -> Result<Link<'_>, Error> {
        let link = self.link_to_any().await?;
        // Opening it may have shown that the store went back.
        self.connector.horizon.check()?;
        Ok(link)
    }

    /// A connection, also to a store that went back.
    async fn link_to_any(&self) -> Result<Link<'_>, Error> {
        let permit = match timeout(self.wait, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(closed()),
            Err(_) => {
                let sentence = format!("all {} connections to MySQL are in use", self.size);
                return Err(Error::new(Kind::Busy, sentence));
            }
        };
        let idle = self.lock().pop();
        let live = match idle {
            Some(live) => live,
            None => self.connector.open().await?,
        };
        Ok(Link { live: Some(live), pool: self, fit: true, _permit: permit })
    }

    /// No more connections from now on.
    pub(super) fn close(&self) {
        self.permits.close();
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Live>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tries of one piece of work: one transaction, or statements that write nothing. What changed
/// nothing and may go through next time is tried again.
///
/// # Cancellation
/// Safe. A transaction is committed or not, as if its answer had been lost; its connection is given up.
pub(super) struct Tries<'a> {
    pool: &'a Pool,
    backoff: Backoff,
    left: u32,
    waited: bool,
    any: bool,
}

impl<'a> Tries<'a> {
    /// A connection for the next try.
    pub(super) async fn link(&mut self) -> Result<Link<'a>, Error> {
        if self.left == 0 {
            return Err(Error::new(Kind::Busy, "too many conflicts about one operation; try again"));
        }
        self.left -= 1;
        if self.any { self.pool.link_to_any().await } else { self.pool.link().await }
    }

    /// What follows from a try: the answer, another try, or an error.
    pub(super) async fn judge<T>(
        &mut self,
        mut link: Link<'a>,
        tried: Result<Tried<T>, Fault>,
    ) -> Result<Option<T>, Error> {
        let fault = match tried {
            Ok(tried) => {
                link.fit = true;
                return Ok(match tried {
                    Tried::Answer(answer) => Some(answer),
                    Tried::LostRace => None,
                });
            }
            Err(fault) => fault,
        };
        if fault.broken {
            // The server went away, or this way to it: the others are no better.
            self.pool.lock().clear();
        } else {
            link.roll_back().await;
        }
        drop(link);
        match fault.again {
            Again::Lost if fault.changed_nothing() => sleep(self.backoff.next_pause()).await,
            Again::Waited if fault.changed_nothing() && !self.waited => self.waited = true,
            _ => return Err(fault.error()),
        }
        Ok(None)
    }
}

/// A connection in use by one call.
pub(super) struct Link<'a> {
    live: Option<Live>,
    pool: &'a Pool,
    fit: bool,
    _permit: SemaphorePermit<'a>,
}

impl Link<'_> {
    /// The connection, with the time a transaction may take before it. From here on a call that is dropped
    /// leaves a transaction behind, and the connection goes with it.
    pub(super) fn live(&mut self) -> &mut Live {
        self.fit = false;
        let limit = self.pool.limit;
        self.live.as_mut().expect("a link keeps its connection until it is dropped").within(limit)
    }

    /// Ends what failed.
    async fn roll_back(&mut self) {
        let wait = self.pool.wait;
        self.fit = self.live().within(wait).roll_back().await.is_ok();
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let Some(live) = self.live.take() else { return };
        if self.fit && !self.pool.permits.is_closed() {
            self.pool.lock().push(live);
        }
        // Otherwise the connection ends here, and the server rolls back what was not committed.
    }
}

/// Tries a piece of work until it is answered or fails. A macro, because a closure that borrows what it
/// is given cannot say that its future may change threads.
macro_rules! retried {
    ($tries:expr, $live:ident => $work:expr) => {{
        let mut tries = $tries;
        loop {
            let mut link = match tries.link().await {
                Ok(link) => link,
                Err(error) => break Err(error),
            };
            let $live = link.live();
            let tried = $work.await.map($crate::mysql::pool::Tried::Answer);
            match tries.judge(link, tried).await {
                Ok(Some(answer)) => break Ok(answer),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
        }
    }};
}
pub(super) use retried;

pub(super) fn closed() -> Error {
    Error::new(Kind::Closed, "the MySQL store was closed by this process")
}
