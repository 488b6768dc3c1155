//! The outbox in MySQL or MariaDB: messages are rows of the caller's transaction, and the rows that are there are
//! what waits.
//!
//! A published message is removed by its whole primary key, so that a save waits for no writer. Numbers are given
//! before their transactions commit; whoever commits late is found all the same, because its rows are there, and
//! a lane is read from its beginning (`floor`) as far as anybody may still write.
//!
//! Lanes, letters and keys that wait are changed under the lock of the lane's row; a holder whose epoch is no
//! longer the row's changes nothing.
//!
//! Tables and statements are in `migrations/mysql/0002_outbox.sql` and `sql/`. Nothing here publishes.

mod cursor;
mod enqueue;
mod floor;
mod judge;
mod look;
mod position;
mod read;
mod row;
mod settle;
mod sql;
mod take;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::message::{MessageId, Topic};
use semel_core::outbox::{
    Aside, Entry, Facts, Found, Judged, Lane, Letter, Outbox, Overview, Taken, Tended, Verdict,
};
use semel_core::store::{Mark, Pending};
use semel_core::{Nonce, mutant};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

pub(super) use enqueue::statements;
pub use enqueue::{enqueue, enqueue_at};

use super::chores::no_row;
use super::connect::{Connector, Live};
use super::fault::Fault;
use super::migrate;
use super::options::{Address, Options};
use super::pool::{Pool, retried};
use crate::horizon::{Horizon, Seen};
use crate::witness;
use floor::Writers;

/// The lanes the statement that writes messages spreads them over.
const LANES: u16 = 8;
/// Who writes is asked at most this often, for all lanes together.
const WRITERS_EVERY: Duration = Duration::from_millis(500);
/// The witness lags at most about this far behind.
const WITNESS_EVERY: Duration = Duration::from_secs(1);

/// The outbox of a MySQL or MariaDB store.
pub struct MysqlOutbox {
    desk: Arc<Desk>,
}

/// What the outbox and its cursors share.
struct Desk {
    connector: Arc<Connector>,
    cursors: Pool,
    chores: Pool,
    clock: Option<Arc<AtomicI64>>,
    facts: Facts,
    /// How far the outbox was seen to have come, also by processes before this one.
    seen: Mutex<Mark>,
    witness: Option<PathBuf>,
    witnessed: Mutex<Option<Instant>>,
    writers: tokio::sync::Mutex<Option<Writers>>,
    writers_hidden: AtomicBool,
}

/// Whether an outbox is behind what was seen of it. Its epoch rises with every holding, so that a later one does not make
/// up for what is missing.
fn is_behind(found: Mark, seen: Mark) -> bool {
    if mutant::on("my-outbox-judged-by-epoch") {
        return found < seen;
    }
    found.epoch < seen.epoch || found.token < seen.token
}

/// Each part as far as either has come: lanes of one outbox are held under several epochs.
fn further(one: Mark, other: Mark) -> Mark {
    if mutant::on("my-outbox-judged-by-epoch") {
        return one.max(other);
    }
    Mark { epoch: one.epoch.max(other.epoch), token: one.token.max(other.token) }
}

impl MysqlOutbox {
    /// Connects with the defaults, and brings the schema up to date.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(Options::new(url)).await
    }

    /// Connects, with connections of its own. Refuses what
    /// [`MysqlStore::connect_with`](crate::mysql::MysqlStore::connect_with) refuses. A witness is
    /// kept beside the store's, as `NAME-outbox`.
    ///
    /// # Cancellation
    /// Safe. A migration that was left half done is done again by whoever connects next.
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        options.check()?;
        let address = Address::of(&options)?;
        // Whether operations went back is the store's to judge; what was published is judged here.
        let horizon = Arc::new(Horizon::new("MySQL", Seen::default()));
        let connector = Arc::new(Connector::new(&address, &options, horizon)?);
        let mut live = connector.dial().await?;
        let server = connector.server(&mut live).await.map_err(|fault| fault.error())?;
        migrate::bring_up_to_date(&mut live, &options, &server, connector.place()).await?;
        let found = connector.examine(&mut live).await.map_err(|fault| fault.error())?;
        let rows = live.within(options.call_timeout).say(sql::FACTS).await.map_err(|fault| fault.error())?;
        let lanes = row::lane(rows.first().ok_or_else(no_row)?, 0)?.0;
        if lanes != LANES {
            let sentence = format!("the outbox has {lanes} lanes, and this build writes to {LANES}; upgrade");
            return Err(Error::new(Kind::Schema, sentence));
        }
        let witness = options.witness.as_ref().map(|path| {
            let mut path = path.clone().into_os_string();
            path.push("-outbox");
            PathBuf::from(path)
        });
        let pool = |size| Pool::new(connector.clone(), size, options.connect_wait, options.call_timeout);
        let desk = Desk {
            cursors: pool(options.connections),
            chores: pool(2),
            clock: options.clock.clone(),
            facts: Facts { engine: server.make.engine(), store_id: found.store_id, lanes },
            seen: Mutex::default(),
            witness,
            witnessed: Mutex::default(),
            writers: tokio::sync::Mutex::default(),
            writers_hidden: AtomicBool::new(false),
            connector,
        };
        Ok(Self { desk: Arc::new(desk) })
    }
}

impl Desk {
    /// The time to bind where a statement would ask the server's clock: none, but in tests.
    fn clock(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.load(Ordering::SeqCst))
    }

    /// The time that counts, on this connection.
    async fn now(&self, live: &mut Live) -> Result<Timestamp, Fault> {
        let rows = live.say(super::sql::MOMENT).await?;
        let now = super::row::time(rows.first().ok_or_else(no_row)?, 0)?;
        Ok(self.clock().map_or(now, Timestamp::from_micros))
    }

    fn lane(&self, lane: Lane) -> Result<(), Error> {
        if lane.0 < self.facts.lanes {
            return Ok(());
        }
        let sentence =
            format!("the outbox has {} lanes, from 0: there is no lane {}", self.facts.lanes, lane.0);
        Err(Error::new(Kind::Misconfigured, sentence))
    }

    /// Who writes, as far as the server tells. Asked now and then; nobody waits for another who asks.
    async fn writers(&self) -> Option<Writers> {
        let mut known = self.writers.try_lock().ok()?;
        let at = Instant::now();
        if self.writers_hidden.load(Ordering::Relaxed) {
            return None;
        }
        if known.is_none_or(|known| at.duration_since(known.at) >= WRITERS_EVERY) {
            match retried!(self.cursors.tries_on_any(), live => look::writers(live)) {
                Ok(open) => *known = Some(Writers { at, open }),
                Err(error) => {
                    if error.kind() == Kind::Denied {
                        self.writers_hidden.store(true, Ordering::Relaxed);
                        tracing::warn!(
                            "open transactions cannot be seen, so every look at the outbox begins with the oldest \
                             row; GRANT PROCESS to this user to make looking cheap while old snapshots are held"
                        );
                    }
                    return None;
                }
            }
        }
        *known
    }

    fn seen(&self) -> Mark {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, mark: Mark) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = further(mark, *seen);
    }

    /// Writes down how far the outbox has come, now and then. A witness that cannot be written weakens the
    /// notice of a restore; it is no reason to refuse work.
    async fn remember(&self, at_once: bool) {
        let Some(path) = self.witness.clone() else { return };
        {
            let mut last = self.witnessed.lock().unwrap_or_else(PoisonError::into_inner);
            if !at_once && last.is_some_and(|last| last.elapsed() < WITNESS_EVERY) {
                return;
            }
            *last = Some(Instant::now());
        }
        let seen = Seen { store_id: Some(self.facts.store_id), mark: self.seen(), last: None };
        let written = spawn_blocking(move || witness::write_further(&path, seen, further)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(%error, "the witness of the outbox cannot be written; a restore may go unnoticed");
        }
    }

    /// What was seen of the outbox, here or by earlier processes. `Err`: of another one.
    fn remembered(&self) -> Result<Result<Mark, ()>, Error> {
        let Some(path) = &self.witness else { return Ok(Ok(self.seen())) };
        let kept = witness::read(path)?;
        let same = kept.store_id.is_none_or(|id| id == self.facts.store_id);
        Ok(if same { Ok(further(self.seen(), kept.mark)) } else { Err(()) })
    }
}

impl Outbox for MysqlOutbox {
    fn facts(&self) -> Facts {
        self.desk.facts.clone()
    }

    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken> {
        Box::pin(take::take(&self.desk, lane, holder, lease))
    }

    fn tend(&self) -> Pending<'_, Tended> {
        Box::pin(settle::tend(&self.desk))
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
        Box::pin(take::rebase(&self.desk, by))
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Token;

    use super::*;

    #[test]
    fn a_witness_forgets_no_message_for_a_later_holding() {
        // G-44
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        let mark = |epoch, token| Mark { epoch, token: Token(token) };
        for seen in [mark(1, 7), mark(3, 5)] {
            let seen = Seen { store_id: Some([1; 16]), mark: seen, last: None };
            witness::write_further(&path, seen, further).unwrap();
        }
        let kept = witness::read(&path).unwrap().mark;
        assert_eq!(kept, mark(3, 7));
        assert!(is_behind(mark(4, 6), kept) && is_behind(mark(2, 8), kept) && !is_behind(kept, kept));
    }
}
