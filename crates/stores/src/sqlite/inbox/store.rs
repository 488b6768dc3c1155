//! What is done with a ledger outside a handler's transaction.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use semel_core::clock::{self, Timestamp};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{
    Aside, Assignment, Batch, Id, Inbox, Incoming, Judged, Kept, Letter, Offset, Overview, Received,
    SetAside, State, Swept, Verdict, asides, headers_of,
};
use semel_core::mutant;
use semel_core::store::Pending;

use super::{advance_in, is_done, receive_as, set_aside_in, signed};
use crate::sqlite::connect::{self, Role};
use crate::sqlite::error::Fault;
use crate::sqlite::{SqliteStore, keeper, reader, shared::Shared};

/// Ledger rows of a group that are counted for people.
const COUNTED_MAX: i64 = 100_000;
/// The log is moved into the database file when it has so many pages, also where no store runs.
const CHECKPOINT_PAGES: i64 = 1000;

/// The ledgers in a SQLite store, on a connection of their own.
#[derive(Clone)]
pub struct SqliteInbox {
    shared: Arc<Shared>,
    conn: Arc<Mutex<Option<Connection>>>,
}

impl SqliteStore {
    /// The ledgers of consumers in this store, on a connection of their own.
    pub fn inbox(&self) -> SqliteInbox {
        SqliteInbox { shared: self.shared.clone(), conn: Arc::default() }
    }
}

impl SqliteInbox {
    pub(super) fn now(&self) -> Timestamp {
        self.shared.options.clock.now()
    }

    pub(super) fn tell(&self, fault: &Fault) -> Error {
        fault.tell(self.shared.place.path())
    }

    /// Runs on a thread that may wait for the file's lock.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&SqliteInbox) -> Result<T, Error> + Send + 'static,
    {
        let inbox = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&inbox)).await;
        done.unwrap_or_else(|panic| {
            Err(Error::new(Kind::Closed, "work on the ledger panicked").maybe_applied().because(panic))
        })
    }

    /// The connection, opened if need be, and given up after an error of its own.
    pub(super) fn connected<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.shared.place.check().map_err(|fault| self.tell(&fault))?;
        let mut held = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = self.shared.options.busy_timeout;
        connect::be_patient(patience);
        let mut conn = match held.take() {
            Some(conn) => conn,
            None => self.open(patience).map_err(|fault| self.tell(&fault))?,
        };
        let done = work(&mut conn);
        if done.as_ref().err().is_none_or(|error| error.kind() == Kind::Busy) {
            *held = Some(conn);
        }
        done
    }

    fn open(&self, patience: Duration) -> Result<Connection, Fault> {
        let conn = connect::open(self.shared.place.path(), Role::Writer, patience)?;
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        Ok(conn)
    }

    /// Begins a transaction that has the file's write lock, in a store that is not behind what was seen of it.
    pub(super) fn begin<'c>(&self, conn: &'c mut Connection) -> Result<Transaction<'c>, Error> {
        // Before the lock is got: what was seen by then is in the file, unless it was set back.
        let (seen, said) = (self.shared.seen(), self.shared.witnesses.behind(self.shared.store_id));
        let tx = self.begin_in_any(conn)?;
        let found = reader::mark(&tx, self.shared.store_id).map_err(|fault| {
            self.shared.note(&fault);
            self.tell(&fault)
        })?;
        match keeper::compare(&self.shared, seen, said, found) {
            Err(went_back) if !mutant::on("sqlite-inbox-in-restored-file") => {
                drop(tx);
                keeper::write_behind(&self.shared, went_back);
                Err(self.shared.tell(went_back))
            }
            _ => Ok(tx),
        }
    }

    fn begin_in_any<'c>(&self, conn: &'c mut Connection) -> Result<Transaction<'c>, Error> {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate);
        tx.map_err(|error| self.tell(&error.into()))
    }

    /// One transaction of the ledger's own.
    async fn transact<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>, Timestamp) -> Result<Done<T>, Fault> + Send + 'static,
    {
        self.run(move |inbox| {
            inbox.connected(|conn| {
                let tx = inbox.begin(conn)?;
                match work(&tx, inbox.now()).map_err(|fault| inbox.tell(&fault))? {
                    Done::Commit(done) => {
                        tx.commit().map_err(|error| {
                            let fault = Fault::from(error);
                            let told = inbox.tell(&fault);
                            if fault.commit_did_nothing() { told } else { told.maybe_applied() }
                        })?;
                        Ok(done)
                    }
                    Done::RollBack(done) => Ok(done),
                }
            })
        })
        .await
    }

    /// Reads for people, who may look into a store that went back too.
    async fn look<T, F>(&self, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.run(move |inbox| {
            inbox.connected(|conn| {
                let tx = inbox.begin_in_any(conn)?;
                read(&tx).map_err(|fault| inbox.tell(&fault))
            })
        })
        .await
    }
}

/// How a piece of work leaves its transaction.
enum Done<T> {
    Commit(T),
    RollBack(T),
}

/// A message to set aside that can move to another thread.
struct Owned {
    message: Incoming,
    id: Option<Id>,
    letter: Option<u64>,
    aside: Aside,
    reason: String,
    tries: u32,
    again_in: Duration,
}

impl Owned {
    fn of(letter: &SetAside<'_>) -> Self {
        Self {
            message: letter.message.clone(),
            id: letter.id.cloned(),
            letter: letter.letter,
            aside: letter.aside,
            reason: letter.reason.clone(),
            tries: letter.tries,
            again_in: letter.again_in,
        }
    }

    fn borrowed(&self) -> SetAside<'_> {
        SetAside {
            message: &self.message,
            id: self.id.as_ref(),
            letter: self.letter,
            aside: self.aside,
            reason: self.reason.clone(),
            tries: self.tries,
            again_in: self.again_in,
        }
    }
}

impl Inbox for SqliteInbox {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn intend<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Vec<Received>> {
        let batch = batch.clone();
        Box::pin(self.transact(move |tx, now| {
            let received = receive_as(tx, &batch.group, &batch.arrivals, now, State::Intended)?.received;
            set_aside_in(tx, &batch.group, &asides(&batch, &received), now)?;
            Ok(Done::Commit(received))
        }))
    }

    fn finish<'a>(&'a self, batch: &'a Batch, took: &'a [Duration]) -> Pending<'a, Kept> {
        let (batch, took) = (batch.clone(), took.to_vec());
        Box::pin(self.transact(move |tx, now| {
            let mut done = tx.prepare_cached(include_str!("../sql/inbox_done.sql"))?;
            let (letters, new): (Vec<_>, Vec<_>) =
                batch.arrivals.iter().zip(&took).partition(|(arrival, _)| arrival.letter.is_some());
            for (arrival, took) in new {
                let (source, id) = (&arrival.message.source, arrival.id.as_str());
                done.execute(params![batch.group, source, id, clock::micros(*took), now.as_micros()])?;
            }
            drop(done);
            let letters: Vec<_> = letters.into_iter().map(|(arrival, _)| arrival.clone()).collect();
            if !letters.is_empty() {
                receive_as(tx, &batch.group, &letters, now, State::Done)?;
            }
            kept(tx, &batch.group, &batch.offsets)
        }))
    }

    fn set_aside<'a>(
        &'a self,
        group: &'a str,
        letters: &'a [SetAside<'a>],
        offsets: &'a [Offset],
    ) -> Pending<'a, Kept> {
        let letters: Vec<Owned> = letters.iter().map(Owned::of).collect();
        let (group, offsets) = (group.to_owned(), offsets.to_vec());
        Box::pin(self.transact(move |tx, now| {
            for letter in letters.iter().map(Owned::borrowed) {
                if !is_done(tx, &group, &letter)? {
                    set_aside_in(tx, &group, &[letter], now)?;
                }
            }
            kept(tx, &group, &offsets)
        }))
    }

    fn due<'a>(&'a self, group: &'a str, limit: u32) -> Pending<'a, Vec<Letter>> {
        let group = group.to_owned();
        Box::pin(self.transact(move |tx, now| {
            let mut due = tx.prepare_cached(include_str!("../sql/inbox_due.sql"))?;
            let rows = due.query_map(params![group, now.as_micros(), limit], |row| Ok(letter(row)))?;
            Ok(Done::RollBack(rows.map(|row| row?).collect::<Result<_, Fault>>()?))
        }))
    }

    fn waiting<'a>(&'a self, group: &'a str) -> Pending<'a, u64> {
        let group = group.to_owned();
        Box::pin(self.look(move |tx| {
            let mut count = tx.prepare_cached(include_str!("../sql/inbox_waiting.sql"))?;
            Ok(count.query_row([group], |row| row.get::<_, i64>(0))? as u64)
        }))
    }

    fn assign<'a>(&'a self, group: &'a str, topic: &'a str, partition: i32) -> Pending<'a, Assignment> {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        Box::pin(self.transact(move |tx, _| {
            let mut assign = tx.prepare_cached(include_str!("../sql/inbox_assign.sql"))?;
            let given = assign.query_row(params![group, topic, partition], |row| {
                Ok(Assignment { generation: row.get::<_, i64>(0)? as u64, next: row.get(1)? })
            })?;
            Ok(Done::Commit(given))
        }))
    }

    fn rewind<'a>(
        &'a self,
        group: &'a str,
        topic: &'a str,
        partition: Option<i32>,
        to: i64,
    ) -> Pending<'a, u64> {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        Box::pin(self.transact(move |tx, _| {
            let mut rewind = tx.prepare_cached(include_str!("../sql/inbox_rewind.sql"))?;
            Ok(Done::Commit(rewind.execute(params![group, topic, partition, to])? as u64))
        }))
    }

    fn sweep<'a>(&'a self, group: &'a str, kept: Duration, limit: u32) -> Pending<'a, Swept> {
        let group = group.to_owned();
        Box::pin(self.transact(move |tx, now| {
            let until = now.as_micros().saturating_sub(clock::micros(kept));
            let delete = |sql: &str| tx.prepare_cached(sql)?.execute(params![group, until, limit]);
            let gone = [
                delete(include_str!("../sql/inbox_sweep.sql"))?,
                delete(include_str!("../sql/inbox_sweep_batches.sql"))?,
                delete(include_str!("../sql/inbox_sweep_fences.sql"))?,
            ];
            Ok(Done::Commit(Swept { deleted: gone[0] as u64, more: gone.contains(&(limit as usize)) }))
        }))
    }

    fn overview(&self) -> Pending<'_, Vec<Overview>> {
        Box::pin(self.look(move |tx| {
            let mut groups = tx.prepare_cached(include_str!("../sql/inbox_groups.sql"))?;
            let groups: Vec<String> = groups.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            let mut look = tx.prepare_cached(include_str!("../sql/inbox_overview.sql"))?;
            let mut all = Vec::with_capacity(groups.len());
            for group in groups {
                let counts = look.query_row(params![group, COUNTED_MAX], |row| {
                    let count = |at| row.get::<_, i64>(at).map(|count| count as u64);
                    let oldest = row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros);
                    Ok(([count(0)?, count(1)?, count(2)?, count(3)?, count(4)?], oldest))
                })?;
                let ([ledger, open, later, dead, behind], oldest) = counts;
                let more = ledger == COUNTED_MAX as u64;
                all.push(Overview { group, ledger, more, open, later, dead, behind, oldest });
            }
            Ok(all)
        }))
    }

    fn letters<'a>(
        &'a self,
        group: &'a str,
        only: Option<Aside>,
        after: u64,
        limit: u32,
    ) -> Pending<'a, Vec<Letter>> {
        let group = group.to_owned();
        Box::pin(self.look(move |tx| {
            let mut page = tx.prepare_cached(include_str!("../sql/inbox_letters.sql"))?;
            let values = params![group, signed(after), only.map(|aside| aside as u8), limit];
            let rows = page.query_map(values, |row| Ok(letter(row)))?;
            rows.map(|row| row?).collect()
        }))
    }

    fn judge<'a>(&'a self, group: &'a str, number: u64, verdict: &'a Verdict) -> Pending<'a, Judged> {
        let (group, number, verdict) = (group.to_owned(), signed(number), verdict.clone());
        Box::pin(self.transact(move |tx, now| judge(tx, &group, number, &verdict, now)))
    }
}

fn judge(
    tx: &Transaction<'_>,
    group: &str,
    number: i64,
    verdict: &Verdict,
    now: Timestamp,
) -> Result<Done<Judged>, Fault> {
    let which = params![group, number];
    let there =
        tx.query_row(include_str!("../sql/inbox_there.sql"), which, |row| row.get::<_, Option<String>>(0));
    let Some(own) = there.optional()? else { return Ok(Done::RollBack(Judged::NotThere)) };
    let id = match verdict {
        Verdict::Replay(id) => id.as_ref().map(Id::as_str),
        Verdict::Discard => {
            tx.execute(include_str!("../sql/inbox_take_letter.sql"), which)?;
            return Ok(Done::Commit(Judged::Made));
        }
    };
    let named = params![group, number, id, now.as_micros()];
    if is_another(id, own.as_deref()) {
        return Ok(Done::RollBack(Judged::HasId));
    }
    if own.is_none() {
        if id.is_none() {
            return Ok(Done::RollBack(Judged::NoId));
        }
        let is_free = tx.execute(include_str!("../sql/inbox_name.sql"), named)? == 1;
        if !is_free && !mutant::on("inbox-id-given-twice") {
            let state =
                tx.query_row(include_str!("../sql/inbox_named.sql"), &named[..3], |row| row.get::<_, u8>(0))?;
            let state = State::from_byte(state).ok_or_else(|| Fault::damaged("a state of the ledger"))?;
            return Ok(Done::RollBack(Judged::IdUsed(state)));
        }
    }
    tx.execute(include_str!("../sql/inbox_replay.sql"), named)?;
    Ok(Done::Commit(Judged::Made))
}

/// Whether a letter would be applied under another id than its own.
fn is_another(given: Option<&str>, own: Option<&str>) -> bool {
    given.is_some() && own.is_some() && given != own && !mutant::on("inbox-id-ignored")
}

fn kept(tx: &Transaction<'_>, group: &str, offsets: &[Offset]) -> Result<Done<Kept>, Fault> {
    Ok(match advance_in(tx, group, offsets)? {
        Kept::Kept => Done::Commit(Kept::Kept),
        Kept::Fenced => Done::RollBack(Kept::Fenced),
    })
}

/// Reads the columns of `inbox_due.sql` and `inbox_letters.sql`.
fn letter(row: &Row<'_>) -> Result<Letter, Fault> {
    let damaged = || Fault::damaged("a letter of the inbox");
    let aside = Aside::from_byte(row.get(4)?).ok_or_else(damaged)?;
    let id: Option<String> = row.get(8)?;
    let again_at = row.get::<_, Option<i64>>(2)?.filter(|_| aside == Aside::Later);
    Ok(Letter {
        number: row.get::<_, i64>(0)? as u64,
        group: row.get(5)?,
        id: id.as_deref().map(Id::parse).transpose().map_err(|_| damaged())?,
        message: Incoming {
            source: row.get(6)?,
            place: row.get(7)?,
            subject: row.get(9)?,
            key: row.get(10)?,
            headers: headers_of(&row.get::<_, String>(11)?),
            payload: row.get::<_, Vec<u8>>(13)?.into(),
        },
        aside,
        reason: row.get(12)?,
        tries: row.get(3)?,
        since: Timestamp::from_micros(row.get(1)?),
        again_at: again_at.map(Timestamp::from_micros),
    })
}
