//! Operations in PostgreSQL 13 or later, reached directly or through a pooler in transaction mode.
//!
//! One table, one row per operation; deadlines are judged by the server's clock, tokens come from a
//! sequence. First claims and plain completions of many callers travel together, because one
//! statement for fifty rows costs little more than one for a single row. Everything else is one
//! transaction that locks the row, asks the core what to do, and does it.
//!
//! It refuses replicas, and a database that was set back to an older state. It needs no superuser, no
//! extension and no prepared statement. It does not make a server durable that was told not to be:
//! `fsync = off` is believed.
//!
//! # Schema
//! Tables start with `semel_` and live in the first schema of the search path. They are made and
//! changed by the store itself when it connects, or by whoever owns the database
//! ([`Migrate::Check`]).

mod batch;
mod chores;
mod connect;
mod fault;
mod flight;
pub mod inbox;
mod migrate;
mod options;
pub mod outbox;
mod pipeline;
mod pool;
mod row;
mod sql;
mod step;
mod subject_keys;
mod sweep;
mod tls;
pub mod tx;
mod verbs;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use semel_core::error::Error;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;

pub use options::{Migrate, Options};
pub use subject_keys::PostgresSubjectKeys;

use connect::Connector;
use pool::Pool;

use crate::horizon::{Horizon, Seen};
use crate::{gather, witness};

/// At most this often the witness is written.
const WITNESS_EVERY: Duration = Duration::from_secs(1);

/// What the database of a store lacks. Changes nothing.
pub(crate) async fn missing(options: Options) -> Result<crate::Missing, Error> {
    options.check()?;
    let address = options::Address::of(&options)?;
    let connector = Connector::new(address, &options, Arc::new(Horizon::new("PostgreSQL", Seen::default())))?;
    let live = connector.dial().await?;
    migrate::missing(&live, &options, connector.place()).await
}

/// A store in PostgreSQL.
pub struct PostgresStore {
    shared: Arc<Shared>,
    queue: mpsc::Sender<gather::Job>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Tells the tasks to finish what they have and end.
    ending: watch::Sender<bool>,
}

/// What all parts of a store use.
struct Shared {
    connector: Arc<Connector>,
    horizon: Arc<Horizon>,
    verbs: Pool,
    chores: Pool,
    /// How a transaction begins.
    begin: String,
    /// How that of a batch does.
    begin_flight: String,
    batch_max: usize,
    connect_wait: Duration,
    call_timeout: Duration,
    clock: Option<Arc<AtomicI64>>,
    witness: Option<PathBuf>,
    sweep_from: sweep::Cursor,
    counts: gather::Counts,
    /// How it was connected, for parts with connections of their own.
    options: Options,
    is_closed: AtomicBool,
}

impl PostgresStore {
    /// Connects with the defaults, and brings the schema up to date.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(Options::new(url)).await
    }

    /// Connects. Refuses a replica, a schema this build cannot use, and whatever it may not do there,
    /// each with a sentence. A store that [went back](semel_core::store::Status::went_back_from)
    /// connects, and answers nothing but its status.
    ///
    /// # Cancellation
    /// Safe. Migrations are applied whole or not at all.
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        options.check()?;
        let address = options::Address::of(&options)?;
        let seen = options.witness.as_deref().map_or(Ok(Seen::default()), witness::read)?;
        let horizon = Arc::new(Horizon::new("PostgreSQL", seen));
        let connector = Connector::new(address, &options, horizon.clone())?;
        let connector = Arc::new(connector.looking_for_records());
        let live = connector.dial().await?;
        migrate::bring_up_to_date(&live, &options, connector.place()).await?;
        connector.examine(&live).await?;

        let shared = Arc::new(Shared::new(connector, horizon, &options));
        let (queue, waiting) = mpsc::channel(options.queue_max);
        let (ending, ended) = watch::channel(false);
        let waiting = gather::Queue::new(waiting);
        let mut live = Some(live);
        let lane = |_| tokio::spawn(batch::lane(shared.clone(), waiting.clone(), ended.clone(), live.take()));
        let mut tasks: Vec<_> = (0..options.lanes).map(lane).collect();
        if let Some(path) = options.witness {
            tasks.push(tokio::spawn(keep_witness(shared.clone(), path, ended)));
        }
        Ok(Self { shared, queue, tasks: Mutex::new(tasks), ending })
    }

    /// Answers what was asked before, then lets go of all connections. Later calls fail as closed.
    ///
    /// # Cancellation
    /// Safe; call it again to wait for the rest.
    pub async fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let _ = self.ending.send(true);
        let mut tasks = self.tasks.lock().await;
        while let Some(task) = tasks.last_mut() {
            let _ = task.await;
            tasks.pop();
        }
        self.shared.verbs.close();
        self.shared.chores.close();
    }

    /// How many batches went to the server, and how many calls they carried.
    #[doc(hidden)]
    pub fn batches(&self) -> (u64, u64) {
        let counts = &self.shared.counts;
        (counts.batches.load(Ordering::Relaxed), counts.calls.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn new(connector: Arc<Connector>, horizon: Arc<Horizon>, options: &Options) -> Self {
        let pool = |size| Pool::new(connector.clone(), size, options.connect_wait);
        let (statement_ms, lock_ms) =
            (options.statement_timeout().as_millis(), options.lock_timeout.as_millis());
        Self {
            verbs: pool(options.connections),
            chores: pool(1),
            begin: sql::begin(statement_ms, lock_ms),
            begin_flight: sql::begin_flight(statement_ms, lock_ms),
            batch_max: options.batch_max,
            connect_wait: options.connect_wait,
            call_timeout: options.call_timeout,
            clock: options.clock.clone(),
            witness: options.witness.clone(),
            sweep_from: sweep::Cursor::default(),
            counts: gather::Counts::default(),
            options: options.clone(),
            is_closed: AtomicBool::new(false),
            connector,
            horizon,
        }
    }

    /// What every call asks first: is the store open, and can it be believed?
    async fn ready(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(pool::closed());
        }
        let behind = self.horizon.check();
        if behind.is_err() && self.horizon.should_look() {
            // Somebody may have acknowledged in another process.
            let link = self.chores.link_to_any().await?;
            self.connector.examine(link.live()).await?;
            return self.horizon.check();
        }
        behind
    }

    /// The time to bind where a statement would ask the server's clock: none, but in tests.
    fn clock(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.load(Ordering::SeqCst))
    }

    /// How long a call in the queue is waited for: one batch before it, and its own.
    fn waits(&self) -> gather::Waits {
        let reply = 2 * (self.connect_wait + self.call_timeout);
        gather::Waits { engine: "PostgreSQL", room: self.connect_wait, reply }
    }
}

async fn keep_witness(shared: Arc<Shared>, path: PathBuf, mut ended: watch::Receiver<bool>) {
    let mut written = Seen::default();
    loop {
        let is_last = tokio::time::timeout(WITNESS_EVERY, ended.wait_for(|ended| *ended)).await.is_ok();
        let seen = shared.horizon.seen();
        // While the store is behind, the file is what says so.
        if seen != written && shared.horizon.check().is_ok() {
            match write_witness(path.clone(), seen).await {
                Ok(()) => written = seen,
                Err(error) => tracing::warn!(%error, path = %path.display(), "the witness cannot be written"),
            }
        }
        if is_last {
            return;
        }
    }
}

async fn write_witness(path: PathBuf, seen: Seen) -> std::io::Result<()> {
    tokio::task::spawn_blocking(move || witness::write(&path, seen)).await.map_err(std::io::Error::other)?
}
