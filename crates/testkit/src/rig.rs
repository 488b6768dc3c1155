//! What the suites need of a backend.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use futures_util::future::BoxFuture;
use semel_core::clock::{self, Clock, Timestamp};
use semel_core::{EffectStore, MemoryStore, OperationId, Snapshot};
use tokio::time::Instant;

/// Makes a fresh rig: a new, empty database nobody else uses. Every case asks for its own, and
/// cases run side by side.
pub type Maker = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Rig>> + Send + Sync>;

/// One database under test, with what a test may do to it that a user may not.
///
/// What is not said here is said by [`EffectStore`]. A rig owns its database; dropping the rig
/// removes it.
pub trait Rig: Send + Sync + 'static {
    /// What runs, for people: "memory", "sqlite", "postgres via pgbouncer".
    fn engine(&self) -> &'static str;

    /// The handle in use. After [`reopen`](Self::reopen) and [`restore`](Self::restore) it is
    /// another one; cases ask again.
    fn store(&self) -> Arc<dyn EffectStore>;

    /// Moves the store's clock by so many microseconds, backwards if negative, at once and for
    /// every handle of this rig, also those opened later. Nothing sleeps.
    fn shift_clock(&self, micros: i64);

    /// Whether the clock moves through [`shift_clock`](Self::shift_clock) alone. If so, deadlines
    /// are tested to the microsecond; a clock that also runs is tested with a margin of a minute.
    fn clock_stands(&self) -> bool {
        false
    }

    /// Whether the store answers without real input and output and its clock follows tokio's, so
    /// that a test may pause tokio's time and let it fly.
    fn in_tokio_time(&self) -> bool {
        false
    }

    /// Closes the store and opens it again, as a restart of the process would. Nothing that was
    /// answered may be lost. A store that lives in this process keeps its handle.
    fn reopen(&self) -> BoxFuture<'_, ()>;

    /// Remembers the present state, as a backup would.
    fn back_up(&self) -> BoxFuture<'_, ()>;

    /// Puts the remembered state back and opens the store again, as a restore would. Whatever
    /// tells the store how far it has come stays where it is, outside the backup.
    fn restore(&self) -> BoxFuture<'_, ()>;

    /// Overwrites the stored outcome of a completed operation with bytes that are no outcome.
    /// `false`: this backend has no way to.
    fn damage_outcome(&self, operation: OperationId) -> BoxFuture<'_, bool>;
}

/// A clock that stands until it is moved, or runs with tokio's.
pub struct ManualClock {
    base: i64,
    offset: AtomicI64,
    tokio: Option<Instant>,
}

impl ManualClock {
    /// Stands at a fixed moment in 2026.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { base: 1_767_225_600_000_000, offset: AtomicI64::new(0), tokio: None })
    }

    /// Runs with tokio's clock, paused or not, from the same moment on.
    pub fn in_tokio_time() -> Arc<Self> {
        let start = Some(Instant::now());
        Arc::new(Self { base: 1_767_225_600_000_000, offset: AtomicI64::new(0), tokio: start })
    }

    /// Moves it, backwards if negative.
    pub fn shift(&self, micros: i64) {
        self.offset.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let ran = self.tokio.map_or(0, |start| clock::micros(start.elapsed()));
        Timestamp::from_micros(self.base + ran + self.offset.load(Ordering::SeqCst))
    }
}

/// The rig of the reference store.
pub struct MemoryRig {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    backup: Mutex<Option<Snapshot>>,
}

impl MemoryRig {
    /// An empty store on a clock of its own.
    pub fn new() -> Arc<Self> {
        Self::on(ManualClock::new())
    }

    fn on(clock: Arc<ManualClock>) -> Arc<Self> {
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        Arc::new(Self { clock, store, backup: Mutex::new(None) })
    }

    /// Makes such rigs.
    pub fn maker() -> Maker {
        Arc::new(|| Box::pin(async { Self::new() as Arc<dyn Rig> }))
    }

    /// Makes rigs whose clock runs with tokio's.
    pub fn maker_in_tokio_time() -> Maker {
        Arc::new(|| Box::pin(async { Self::on(ManualClock::in_tokio_time()) as Arc<dyn Rig> }))
    }
}

impl Rig for MemoryRig {
    fn engine(&self) -> &'static str {
        "memory"
    }

    fn store(&self) -> Arc<dyn EffectStore> {
        self.store.clone()
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.shift(micros);
    }

    fn clock_stands(&self) -> bool {
        self.clock.tokio.is_none()
    }

    fn in_tokio_time(&self) -> bool {
        self.clock.tokio.is_some()
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn back_up(&self) -> BoxFuture<'_, ()> {
        *self.backup.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.store.snapshot());
        Box::pin(async {})
    }

    fn restore(&self) -> BoxFuture<'_, ()> {
        let backup = self.backup.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.store.restore(backup.expect("a case backs up before it restores"));
        Box::pin(async {})
    }

    fn damage_outcome(&self, _operation: OperationId) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}
