//! The outbox of a SQLite file: messages in the tables of the application's own database.
//!
//! [`enqueue`] writes them in the application's transaction, on its own connection. [`SqliteOutbox`] is the
//! relay's side: one thread reads, one writes, each with a connection of its own. SQLite has one writer at a
//! time, so the order of numbers is the order of commits and nothing commits late: a lane remembers one
//! number. `PRAGMA data_version` says whether anybody has committed since the last look, so that looking
//! costs next to nothing while nobody does.
//!
//! A save is not synced to the disk by itself: after a power failure, messages may be published again that
//! were published just before it, under the same ids. Taking a lane is: no holding is ever forgotten.
//!
//! Beside the database `NAME` stands `NAME-semel-outbox-witness`, which remembers how far the outbox had
//! come. It must stay where it is when a backup is restored: then lanes are not given out until an operator
//! has rebased.

mod cursor;
mod hand;
mod position;
mod read;
mod row;
mod settle;
mod sight;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel_core::error::{Error, Kind};
use semel_core::lease::Nonce;
use semel_core::message::{Message, MessageId, Topic};
use semel_core::outbox::{
    self, Aside, Entry, Facts, Judged, LANES_MAX, Lane, Letter, Outbox, Overview, Taken, Tended, Term,
    Verdict,
};
use semel_core::store::Pending;
use semel_core::{Clock, SystemClock, Timestamp, mutant};
use tokio::sync::oneshot;

use super::connect::{self, Role};
use super::error::Fault;
use super::place::Place;
use super::queue::{Queue, Refused};
use super::witness::Witnesses;
use super::{migrate, reader, spawn};
use hand::{Done, Hand, Job, Lasting, LoseAnswer};
use settle::Judgement;
use sight::{Found, Sight};

pub use write::enqueue;
pub(super) use write::{enqueue_at, must_be_in_transaction, must_sync, tell};

/// Most calls waiting for a thread.
const QUEUE_MAX: usize = 1024;

/// The witness lags at most about this far behind.
const WITNESS_EVERY: Duration = Duration::from_secs(1);

/// Longest name of an operator kept with a rebase.
const OPERATOR_BYTES_MAX: usize = 512;

/// What may be chosen about an outbox. The defaults are right for production.
#[derive(Clone)]
pub struct Options {
    /// Judges leases and delays. Processes that share a file must agree on it.
    pub clock: Arc<dyn Clock>,
    /// How long to wait for another's write lock before a call fails with [`Kind::Busy`].
    pub busy_timeout: Duration,
    /// How many lanes messages are spread over; as many as the database has unless said otherwise, and a new
    /// one has 1. Can be changed while nothing waits.
    pub lanes: Option<u16>,
    /// Where to remember how far the outbox had come; beside the database unless said otherwise.
    pub witness: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let (clock, busy_timeout) = (Arc::new(SystemClock), Duration::from_secs(5));
        Self { clock, busy_timeout, lanes: None, witness: None }
    }
}

/// What the threads of an outbox have in common.
struct Shared {
    place: Place,
    witnesses: Witnesses,
    options: Options,
    facts: Facts,
    sight: Mutex<Sight>,
    lose_answer: LoseAnswer,
}

/// The way to the threads.
struct Desk {
    shared: Arc<Shared>,
    reads: Arc<Queue<Job>>,
    writes: Arc<Queue<Job>>,
}

/// An outbox in one SQLite file. Clones share everything; the threads end with the last of them and of its
/// cursors.
#[derive(Clone)]
pub struct SqliteOutbox(Arc<Desk>);

impl SqliteOutbox {
    /// Opens the database at a path, and makes it if there is none. Blocks for some milliseconds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default())
    }

    /// Opens with other than the default options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        connect::check_library()?;
        let place = Place::at(path.as_ref())?;
        let connect = || {
            connect::open(place.path(), Role::Relay, options.busy_timeout)
                .map_err(|fault| fault.tell(place.path()))
        };
        let (mut writer, reader) = (connect()?, connect()?);
        migrate::run(&mut writer, &place, options.clock.now())?;
        let store_id = reader::describe(&writer).map_err(|fault| fault.tell(place.path()))?.store_id;
        let lanes = lanes(&writer, &place, options.lanes)?;
        let witnesses = Witnesses::at(options.witness.as_deref(), &place, "-semel-outbox-witness");
        let facts = Facts { engine: "sqlite", store_id, lanes };
        let (sight, lose_answer) = (Mutex::default(), LoseAnswer::default());
        let shared = Arc::new(Shared { place, witnesses, options, facts, sight, lose_answer });
        Self::start(shared, reader, writer)
    }

    fn start(shared: Arc<Shared>, reader: Connection, writer: Connection) -> Result<Self, Error> {
        let (reads, writes) = (Arc::new(Queue::new(QUEUE_MAX)), Arc::new(Queue::new(QUEUE_MAX)));
        let desk = Desk { shared, reads, writes };
        for (name, queue, conn) in
            [("semel-outbox-reader", &desk.reads, reader), ("semel-outbox-writer", &desk.writes, writer)]
        {
            let (shared, queue) = (desk.shared.clone(), queue.clone());
            // If one cannot be started, dropping the desk stops the other.
            spawn(name, move || hand::run(shared, &queue, conn))?;
        }
        Ok(Self(Arc::new(desk)))
    }

    /// [`enqueue`], with this outbox's clock.
    pub fn enqueue(&self, transaction: &Connection, messages: &[Message]) -> Result<(), Error> {
        enqueue_at(transaction, messages, self.0.shared.options.clock.now())
    }

    /// For tests: the next save of any cursor commits, and its answer is lost.
    #[doc(hidden)]
    pub fn lose_answer_of_next_save(&self) {
        self.0.shared.lose_answer.once();
    }
}

fn lanes(conn: &Connection, place: &Place, wanted: Option<u16>) -> Result<u16, Error> {
    let tell = |error: rusqlite::Error| Fault::from(error).tell(place.path());
    let ask = || conn.query_row(include_str!("sql/lanes.sql"), [], |row| row.get::<_, u16>(0)).map_err(tell);
    let found = ask()?;
    let Some(wanted) = wanted.filter(|wanted| *wanted != found) else { return Ok(found) };
    if !(1..=LANES_MAX).contains(&wanted) {
        let text = format!("an outbox has 1 to {LANES_MAX} lanes, not {wanted}");
        return Err(Error::new(Kind::Misconfigured, text));
    }
    conn.execute_batch("BEGIN IMMEDIATE").map_err(tell)?;
    let changed = settle::set_lanes(conn, wanted);
    let ended = match &changed {
        Ok(Done::Commit(_)) => conn.execute_batch("COMMIT"),
        _ => conn.execute_batch("ROLLBACK"),
    };
    ended.map_err(tell)?;
    match changed.map_err(|fault| fault.tell(place.path()))? {
        Done::Commit(_) => Ok(wanted),
        Done::Leave(_) => {
            let text = format!(
                "the outbox of {} has {found} lanes, and messages wait in them; publish those before its lanes \
                 become {wanted}",
                place.path().display()
            );
            Err(Error::new(Kind::Misconfigured, text))
        }
    }
}

impl Desk {
    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Hand) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask(&self.reads, job).await
    }

    /// Jobs are done in the order they were asked for, also those whose caller has gone.
    async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Hand) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask(&self.writes, job).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        queue: &Queue<Job>,
        job: impl FnOnce(&mut Hand) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (caller, answer) = oneshot::channel();
        let job: Job = Box::new(move |hand| {
            // The caller may have been cancelled.
            let _ = caller.send(job(hand));
        });
        queue.push(job).map_err(|refused| self.refused(refused))?;
        answer.await.unwrap_or_else(|_| Err(self.refused(Refused::Closed).maybe_applied()))
    }

    fn refused(&self, refused: Refused) -> Error {
        let at = self.shared.place.path().display();
        match refused {
            Refused::Full => {
                let text = format!("{QUEUE_MAX} calls are waiting for the outbox of {at}; try again");
                Error::new(Kind::Busy, text)
            }
            Refused::Closed => Error::new(Kind::Closed, format!("the outbox of {at} was closed")),
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.reads.close();
        self.writes.close();
    }
}

impl Hand {
    /// Reads, and says why no lane is given out, if so: the database is behind what was seen of it.
    fn ask<T>(
        &mut self,
        look: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<(T, Option<String>), Error> {
        let shared = self.shared.clone();
        // Before the database: beside a relay that is at work the witness goes on.
        let late = mutant::on("sqlite-outbox-witness-asked-late");
        let (mut before, mut witnesses) =
            (shared.sight(), if late { Vec::new() } else { shared.witnesses.load()? });
        let (answer, found) =
            self.read(|conn| Ok((look(conn)?, Found::read(conn, shared.facts.store_id)?)))?;
        if late {
            (before, witnesses) = (shared.sight(), shared.witnesses.load()?);
        }
        Ok((answer, shared.stopped(before, &witnesses, found)))
    }

    /// Writes down how far the outbox has come, now and then.
    fn remember(&mut self) {
        if self.witnessed.is_none_or(|last| last.elapsed() >= WITNESS_EVERY) {
            self.witnessed = Some(Instant::now());
            let (shared, before) = (self.shared.clone(), self.shared.sight());
            match self.read(|conn| shared.judge(before, conn)) {
                Ok(found) => shared.remember(found),
                Err(error) => tracing::warn!(%error, "the outbox could not be looked at"),
            }
        }
    }
}

impl Outbox for SqliteOutbox {
    fn facts(&self) -> Facts {
        self.0.shared.facts.clone()
    }

    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken> {
        Box::pin(async move {
            let lanes = self.0.shared.facts.lanes;
            if lane.0 >= lanes {
                let text = format!("there is no lane {}: the outbox has {lanes}, from 0", lane.0);
                return Err(Error::new(Kind::Misconfigured, text));
            }
            let desk = self.0.clone();
            self.0.write(move |hand| take(hand, desk, lane, holder, lease)).await
        })
    }

    fn tend(&self) -> Pending<'_, Tended> {
        Box::pin(async move {
            let now = self.0.shared.options.clock.now();
            let look = move |conn: &Connection| {
                let mut statement = conn.prepare_cached(include_str!("sql/any_due.sql"))?;
                Ok(statement.query_row([now.as_micros()], |row| row.get::<_, bool>(0))?)
            };
            // Reading first: nobody should wait for a write lock that is taken for nothing.
            if !self.0.read(move |hand| hand.look(look)).await? {
                return Ok(Tended::default());
            }
            self.0.write(move |hand| hand.go_on(Lasting::Disk, |conn| settle::tend(conn, now))).await
        })
    }

    fn overview(&self) -> Pending<'_, Overview> {
        Box::pin(self.0.read(|hand| {
            let now = hand.shared.options.clock.now();
            let (overview, stopped) = hand.ask(|conn| read::overview(conn, now))?;
            Ok(Overview { stopped, ..overview })
        }))
    }

    fn list(&self, topic: Option<&Topic>, after: u64, limit: u32) -> Pending<'_, Vec<(Lane, Entry)>> {
        let topic = topic.cloned();
        Box::pin(self.0.read(move |hand| hand.read(|conn| read::list(conn, topic.as_ref(), after, limit))))
    }

    fn aside(&self, only: Option<Aside>, after: u64, limit: u32) -> Pending<'_, Vec<Letter>> {
        Box::pin(self.0.read(move |hand| hand.read(|conn| read::letters(conn, only, after, limit))))
    }

    fn find(&self, id: MessageId) -> Pending<'_, Option<outbox::Found>> {
        Box::pin(self.0.read(move |hand| hand.read(|conn| read::find(conn, id))))
    }

    fn judge<'a>(&'a self, id: MessageId, verdict: &'a Verdict) -> Pending<'a, Judged> {
        let verdict = verdict.clone();
        Box::pin(async move {
            if let Verdict::Edit(message) = &verdict {
                outbox::check(std::slice::from_ref(message))?;
            }
            let now = self.0.shared.options.clock.now();
            let judged = self
                .0
                .write(move |hand| hand.change(Lasting::Disk, |conn| settle::judge(conn, id, &verdict, now)));
            match judged.await? {
                Judgement::Judged(judged) => Ok(judged),
                Judgement::Refused(why) => Err(Error::new(Kind::Misconfigured, why)),
            }
        })
    }

    fn rebase<'a>(&'a self, by: &'a str) -> Pending<'a, u64> {
        let by = by[..by.floor_char_boundary(OPERATOR_BYTES_MAX)].to_owned();
        Box::pin(self.0.write(move |hand| {
            let now = hand.shared.options.clock.now();
            let (shared, seen) = (hand.shared.clone(), hand.shared.furthest()?);
            let (found, count) = hand.change(Lasting::Disk, |conn| {
                let found = Found::read(conn, shared.facts.store_id)?;
                settle::rebase(conn, found.mark, seen, &by, now)
            })?;
            shared.remember(found);
            Ok(count)
        }))
    }
}

fn take(
    hand: &mut Hand,
    desk: Arc<Desk>,
    lane: Lane,
    holder: Nonce,
    lease: Duration,
) -> Result<Taken, Error> {
    /// What came of it.
    enum Came {
        Taken(u64, settle::Row, Found),
        Held(Timestamp, Duration),
        Stopped(String),
    }
    let shared = hand.shared.clone();
    let came = hand.change(Lasting::Disk, |conn| {
        let found = Found::read(conn, shared.facts.store_id)?;
        // With the write lock: nobody is further than what is found.
        let witnesses = match shared.witnesses.load() {
            Ok(witnesses) => witnesses,
            Err(error) => return Ok(Done::Leave(Err(error))),
        };
        if let Some(why) = shared.stopped(shared.sight(), &witnesses, found) {
            return Ok(Done::Leave(Ok(Came::Stopped(why))));
        }
        let (row, now) = (settle::lane(conn, lane)?, shared.options.clock.now());
        let by_another = row.holder.is_some_and(|held_by| held_by != holder);
        if by_another && now < row.lease_until {
            return Ok(Done::Leave(Ok(Came::Held(row.lease_until, row.lease_until.since(now)))));
        }
        let epoch = settle::take(conn, lane, holder, now.after(lease))?;
        let found = Found::read(conn, shared.facts.store_id)?;
        Ok(Done::Commit(Ok(Came::Taken(epoch, row, found))))
    })??;
    Ok(match came {
        Came::Stopped(why) => Taken::Stopped { why },
        Came::Held(until, wait) => Taken::Held { until, wait },
        Came::Taken(epoch, row, found) => {
            shared.remember(found);
            let term = Term { lane, epoch };
            Taken::Yours(Box::new(cursor::SqliteCursor::new(desk, term, lease, row.saves, row.floor)))
        }
    })
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOutbox").field("path", &self.0.shared.place.path()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // G-44: the count for people may take long, and the relay goes on meanwhile.
    #[tokio::test]
    async fn who_counts_what_waits_while_others_go_on_does_not_take_that_for_a_restore() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let outbox = SqliteOutbox::open(&path).unwrap();
        let shared = outbox.0.shared.clone();
        let ask = move |hand: &mut Hand| {
            let (_, stopped) = hand.ask(|snapshot| {
                // The snapshot begins with its first look.
                let found = Found::read(snapshot, shared.facts.store_id)?;
                let mark = semel_core::store::Mark { token: semel_core::Token(7), ..found.mark };
                shared.remember(Found { mark, ..found });
                Ok(())
            })?;
            Ok(stopped)
        };
        assert_eq!(outbox.0.read(ask).await.unwrap(), None);
    }
}
