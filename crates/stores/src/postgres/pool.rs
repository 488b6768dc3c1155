//! A few connections shared by many calls. One that was left in the middle of something is not
//! given to the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::connect::{Connector, Live};
use super::fault::Fault;

pub(super) struct Pool {
    connector: Arc<Connector>,
    idle: Mutex<Vec<Live>>,
    permits: Semaphore,
    size: usize,
    wait: Duration,
}

impl Pool {
    pub(super) fn new(connector: Arc<Connector>, size: usize, wait: Duration) -> Self {
        Self { connector, idle: Mutex::default(), permits: Semaphore::new(size), size, wait }
    }

    /// A connection to a store that may be used.
    pub(super) async fn link(&self) -> Result<Link<'_>, Error> {
        let link = self.link_to_any().await?;
        // Opening it may have shown that the store went back.
        self.connector.horizon.check()?;
        Ok(link)
    }

    /// A connection, also to a store that went back.
    pub(super) async fn link_to_any(&self) -> Result<Link<'_>, Error> {
        let permit = match timeout(self.wait, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(closed()),
            Err(_) => {
                let sentence = format!("all {} connections to PostgreSQL are in use", self.size);
                return Err(Error::new(Kind::Busy, sentence));
            }
        };
        let idle = self.take_idle();
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

    fn take_idle(&self) -> Option<Live> {
        let mut idle = self.lock();
        while let Some(live) = idle.pop() {
            if !live.client.is_closed() {
                return Some(live);
            }
        }
        None
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Live>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn live(&self) -> &Live {
        self.live.as_ref().expect("a link keeps its connection until it is dropped")
    }

    /// The connection, for a transaction.
    pub(super) fn client(&mut self) -> &mut tokio_postgres::Client {
        &mut self.live.as_mut().expect("a link keeps its connection until it is dropped").client
    }

    /// From here to [`done`](Self::done) a dropped call leaves a transaction behind.
    pub(super) fn busy(&mut self) {
        self.fit = false;
    }

    /// The transaction has ended.
    pub(super) fn done(&mut self) {
        self.fit = true;
    }

    /// The transaction failed: ends it if the connection still works.
    pub(super) async fn roll_back(&mut self, fault: &Fault) {
        if fault.broken {
            return;
        }
        let ended = timeout(self.pool.wait, self.live().client.batch_execute("ROLLBACK")).await;
        self.fit = matches!(ended, Ok(Ok(())));
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let Some(live) = self.live.take() else { return };
        match self.fit && !live.client.is_closed() && !self.pool.permits.is_closed() {
            true => self.pool.lock().push(live),
            false => live.kill(),
        }
    }
}

pub(super) fn closed() -> Error {
    Error::new(Kind::Closed, "the PostgreSQL store was closed by this process")
}
