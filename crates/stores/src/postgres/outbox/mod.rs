//! The outbox in PostgreSQL: messages are rows of the caller's transaction, readers compare snapshots.
//!
//! Numbers of messages are given before their transactions commit, so "everything above the last number"
//! would skip whoever commits late. A cursor keeps a snapshot instead: what the server says had committed
//! when it last read. What a newer snapshot sees and that one did not is what is new, late or not, and a
//! transaction that stays open anywhere delays nobody but itself. Inside such a difference messages go by
//! number, which for transactions that waited for each other is the order in which they wrote.
//!
//! Tables and statements are in `migrations/postgres/0002_outbox.sql` and `sql/`. Nothing here publishes.

mod append;
mod chores;
mod cursor;
mod enqueue;
mod judge;
mod look;
mod position;
mod read;
mod rebase;
mod ring;
mod row;
mod sql;
mod take;
mod together;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::Nonce;
use semel_core::error::{Error, Kind};
use semel_core::message::{MessageId, Topic};
use semel_core::outbox::{
    Aside, Entry, Facts, Found, Judged, Lane, Letter, Outbox, Overview, Taken, Tended, Verdict,
};
use semel_core::store::Pending;

pub(super) use chores::create;
pub use enqueue::{Outermost, Writer, enqueue, enqueue_at};

use super::connect::{Connector, get};
use super::options::{Address, Options};
use super::pool::Pool;
use super::{PostgresStore, migrate};
use crate::horizon::{Horizon, Seen};
use together::Together;

/// The outbox of a PostgreSQL store.
pub struct PostgresOutbox {
    desk: Arc<Desk>,
}

/// What the outbox and its cursors share.
struct Desk {
    cursors: Pool,
    chores: Pool,
    /// How a transaction that writes begins.
    begin: String,
    /// How one that reads begins.
    begin_read: String,
    /// How long a step may wait for its lane, in milliseconds.
    lock_ms: i64,
    call_timeout: Duration,
    clock: Option<Arc<AtomicI64>>,
    store_id: [u8; 16],
    lanes: u16,
    together: Together,
}

impl PostgresOutbox {
    /// Connects with the defaults, and brings the schema up to date.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(Options::new(url)).await
    }

    /// Connects, with connections of its own. Refuses what [`PostgresStore::connect_with`] refuses.
    ///
    /// # Cancellation
    /// Safe. Migrations are applied whole or not at all.
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        options.check()?;
        let address = Address::of(&options)?;
        let connector = Arc::new(Connector::new(
            address,
            &options,
            Arc::new(Horizon::new("PostgreSQL", Seen::default())),
        )?);
        let live = connector.dial().await?;
        migrate::bring_up_to_date(&live, &options, connector.place()).await?;
        Self::on(connector, &options).await
    }

    async fn on(connector: Arc<Connector>, options: &Options) -> Result<Self, Error> {
        let pool = |size| Pool::new(connector.clone(), size, options.connect_wait);
        let (cursors, chores) = (pool(options.connections), pool(2));
        let facts = {
            let mut link = chores.link_to_any().await?;
            link.busy();
            let rows = link.live().query(options.call_timeout, sql::FACTS, &[]).await;
            if rows.is_ok() {
                link.done();
            }
            rows.map_err(|fault| fault.error())?
        };
        let damaged = || Error::new(Kind::Damaged, "the table semel_meta cannot be read; restore it");
        let facts = facts.first().ok_or_else(damaged)?;
        let store_id = get::<&[u8]>(facts, 0)?.try_into().map_err(|_| damaged())?;
        let lanes = u16::try_from(get::<i32>(facts, 1)?).map_err(|_| damaged())?;
        let (statement, lock) = (options.statement_timeout().as_millis(), options.lock_timeout.as_millis());
        let desk = Desk {
            cursors,
            chores,
            begin: super::sql::begin(statement, lock),
            begin_read: sql::begin_read(statement),
            lock_ms: i64::try_from(lock).unwrap_or(i64::MAX),
            call_timeout: options.call_timeout,
            clock: options.clock.clone(),
            store_id,
            lanes,
            together: Together::default(),
        };
        Ok(Self { desk: Arc::new(desk) })
    }
}

impl PostgresStore {
    /// The outbox of this store, on connections of its own.
    pub async fn outbox(&self) -> Result<PostgresOutbox, Error> {
        PostgresOutbox::on(self.shared.connector.clone(), &self.shared.options).await
    }
}

impl Desk {
    /// The time to bind where a statement would ask the server's clock: none, but in tests.
    fn clock(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.load(Ordering::SeqCst))
    }

    /// A lane as the server counts it.
    fn lane(&self, lane: Lane) -> Result<i16, Error> {
        match i16::try_from(lane.0) {
            Ok(number) if lane.0 < self.lanes => Ok(number),
            _ => {
                let sentence =
                    format!("the outbox has {} lanes, from 0: there is no lane {}", self.lanes, lane.0);
                Err(Error::new(Kind::Misconfigured, sentence))
            }
        }
    }
}

impl Outbox for PostgresOutbox {
    fn facts(&self) -> Facts {
        Facts { engine: "postgres", store_id: self.desk.store_id, lanes: self.desk.lanes }
    }

    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken> {
        Box::pin(take::take(&self.desk, lane, holder, lease))
    }

    fn tend(&self) -> Pending<'_, Tended> {
        Box::pin(chores::tend(&self.desk))
    }

    fn overview(&self) -> Pending<'_, Overview> {
        Box::pin(look::overview(&self.desk))
    }

    fn list(&self, topic: Option<&Topic>, after: u64, limit: u32) -> Pending<'_, Vec<(Lane, Entry)>> {
        let topic = topic.cloned();
        Box::pin(async move { look::list(&self.desk, topic.as_ref(), after, limit).await })
    }

    fn aside(&self, only: Option<Aside>, after: u64, limit: u32) -> Pending<'_, Vec<Letter>> {
        Box::pin(look::aside(&self.desk, only, after, limit))
    }

    fn find(&self, id: MessageId) -> Pending<'_, Option<Found>> {
        Box::pin(look::find(&self.desk, id))
    }

    fn judge<'a>(&'a self, id: MessageId, verdict: &'a Verdict) -> Pending<'a, Judged> {
        Box::pin(judge::judge(&self.desk, id, verdict))
    }

    fn rebase<'a>(&'a self, by: &'a str) -> Pending<'a, u64> {
        Box::pin(rebase::rebase(&self.desk, by))
    }
}
