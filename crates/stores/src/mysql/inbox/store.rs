//! What is done with a ledger outside a handler's transaction.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Conn, Row};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{
    Arrival, Aside, Assignment, Batch, Id, Inbox, Incoming, Judged, Kept, Letter, Offset, Overview, Received,
    SetAside, State, Swept, Verdict, asides, headers_of,
};
use semel_core::store::Pending;
use semel_core::{Timestamp, clock, mutant};
use tokio::time::timeout;

use super::aside::{put_all, put_later};
use super::receive::{View, receive_as};
use super::{move_on, signed, sql, sweep};
use crate::mysql::chores::no_row;
use crate::mysql::fault::Fault;
use crate::mysql::pool::{Tries, retried};
use crate::mysql::row;
use crate::mysql::say::{inline, say, tell};
use crate::mysql::{MysqlStore, Shared};

/// Ledger rows of a group that are counted for people.
const COUNTED_MAX: u64 = 100_000;
/// How long a transaction of the ledger's own may stand still.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How long the statements of a transaction around a ledger may take together. Each letter is one.
pub(super) const WORK_MAX: Duration = Duration::from_secs(30);

/// The ledgers in a MySQL or MariaDB store.
pub struct MysqlInbox {
    shared: Arc<Shared>,
}

impl MysqlStore {
    /// The ledgers of consumers in this store. They use connections of their own.
    pub fn inbox(&self) -> MysqlInbox {
        MysqlInbox { shared: self.shared.clone() }
    }
}

/// How a transaction around a ledger begins. Without autocommit a session is never outside of a transaction: after an
/// error that rolls back, what follows is not committed by itself.
pub(super) fn settings(idle_max: Duration) -> String {
    format!("SET SESSION autocommit = 0, wait_timeout = {};\n", idle_max.as_secs().max(1))
}

impl MysqlInbox {
    pub(super) async fn ready(&self) -> Result<(), Error> {
        self.shared.ready().await
    }

    pub(super) fn tries(&self) -> Tries<'_> {
        self.shared.ledgers.tries()
    }
}

/// How a piece of work leaves its transaction.
enum Done<T> {
    Commit(T),
    RollBack(T),
}

/// A transaction of the ledger's own, tried again if it lost a deadlock: `work` is given its connection.
macro_rules! transact {
    ($inbox:expr, $conn:ident => $work:expr) => {{
        let inbox: &MysqlInbox = $inbox;
        inbox.ready().await?;
        retried!(inbox.tries(), live => async {
            live.say(&format!("{}START TRANSACTION", settings(IDLE_MAX))).await?;
            let $conn: &mut Conn = live.conn();
            let done = in_time(WORK_MAX, $work).await?;
            // The end has a time of its own.
            live.within(inbox.shared.call_timeout);
            match done {
                Done::Commit(done) => {
                    live.commit(&[]).await?;
                    Ok(done)
                }
                Done::RollBack(done) => {
                    live.roll_back().await?;
                    Ok(done)
                }
            }
        })
    }};
}

/// What is not done by then is given up, with its connection. Nothing of it was committed.
pub(super) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(Fault::timed_out(false)))
}

async fn rows(conn: &mut Conn, sql: &str, values: &[mysql_async::Value]) -> Result<Done<Vec<Row>>, Fault> {
    Ok(Done::RollBack(tell(conn, sql, values).await?.sets.pop().unwrap_or_default()))
}

impl Inbox for MysqlInbox {
    fn engine(&self) -> &'static str {
        self.shared.capabilities.engine
    }

    fn intend<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Vec<Received>> {
        Box::pin(async move { transact!(self, conn => intend(conn, batch)) })
    }

    fn finish<'a>(&'a self, batch: &'a Batch, took: &'a [Duration]) -> Pending<'a, Kept> {
        Box::pin(async move { transact!(self, conn => finish(conn, batch, took)) })
    }

    fn set_aside<'a>(
        &'a self,
        group: &'a str,
        letters: &'a [SetAside<'a>],
        offsets: &'a [Offset],
    ) -> Pending<'a, Kept> {
        Box::pin(async move { transact!(self, conn => keep(conn, group, letters, offsets)) })
    }

    fn due<'a>(&'a self, group: &'a str, limit: u32) -> Pending<'a, Vec<Letter>> {
        let values = [group.into(), limit.into()];
        Box::pin(async move {
            let found: Vec<Row> = transact!(self, conn => rows(conn, sql::DUE, &values))?;
            found.iter().map(letter).collect()
        })
    }

    fn waiting<'a>(&'a self, group: &'a str) -> Pending<'a, u64> {
        let values = [group.into()];
        Box::pin(async move {
            let found: Vec<Row> = transact!(self, conn => rows(conn, sql::WAITING, &values))?;
            Ok(row::int(found.first().ok_or_else(no_row)?, 0)? as u64)
        })
    }

    fn assign<'a>(&'a self, group: &'a str, topic: &'a str, partition: i32) -> Pending<'a, Assignment> {
        let named = || [group.into(), topic.into(), partition.into()];
        let values = [named(), named()].concat();
        Box::pin(async move {
            transact!(self, conn => async {
                let said = tell(conn, sql::ASSIGN, &values).await?;
                let given = said.row(1).ok_or_else(no_row)?;
                let generation = row::int(given, 0)? as u64;
                Ok::<_, Fault>(Done::Commit(Assignment { generation, next: row::maybe_int(given, 1)? }))
            })
        })
    }

    fn rewind<'a>(
        &'a self,
        group: &'a str,
        topic: &'a str,
        partition: Option<i32>,
        to: i64,
    ) -> Pending<'a, u64> {
        let values = [to.into(), group.into(), topic.into(), partition.into(), partition.into()];
        Box::pin(async move {
            transact!(self, conn => async {
                Ok::<_, Fault>(Done::Commit(tell(conn, sql::REWIND, &values).await?.changed))
            })
        })
    }

    fn sweep<'a>(&'a self, group: &'a str, kept: Duration, limit: u32) -> Pending<'a, Swept> {
        Box::pin(async move {
            transact!(self, conn => async {
                Ok::<_, Fault>(Done::Commit(sweep::sweep(conn, group, kept, limit).await?))
            })
        })
    }

    fn overview(&self) -> Pending<'_, Vec<Overview>> {
        Box::pin(async move { transact!(self, conn => overview(conn)) })
    }

    fn letters<'a>(
        &'a self,
        group: &'a str,
        only: Option<Aside>,
        after: u64,
        limit: u32,
    ) -> Pending<'a, Vec<Letter>> {
        let only = only.map(|aside| aside as u8);
        let values = [group.into(), signed(after).into(), only.into(), only.into(), limit.into()];
        Box::pin(async move {
            let found: Vec<Row> = transact!(self, conn => rows(conn, sql::LETTERS, &values))?;
            found.iter().map(letter).collect()
        })
    }

    fn judge<'a>(&'a self, group: &'a str, number: u64, verdict: &'a Verdict) -> Pending<'a, Judged> {
        Box::pin(async move { transact!(self, conn => judge(conn, group, number, verdict)) })
    }
}

async fn intend(conn: &mut Conn, batch: &Batch) -> Result<Done<Vec<Received>>, Fault> {
    let begun = receive_as(conn, &batch.group, &batch.arrivals, State::Intended, View::Ours("")).await?;
    put_all(conn, &batch.group, &asides(batch, &begun.received)).await?;
    // How long it took is known of each call by itself.
    super::note(conn, &batch.group, &begun, Duration::ZERO).await?;
    Ok(Done::Commit(begun.received))
}

async fn finish(conn: &mut Conn, batch: &Batch, took: &[Duration]) -> Result<Done<Kept>, Fault> {
    let mut statements = Vec::new();
    for (arrival, took) in batch.arrivals.iter().zip(took).filter(|(arrival, _)| arrival.letter.is_none()) {
        let (source, id) = (arrival.message.source.as_str(), arrival.id.as_str());
        let values = [clock::micros(*took).into(), batch.group.as_str().into(), source.into(), id.into()];
        statements.push(inline(sql::DONE, &values));
    }
    if !statements.is_empty() {
        say(conn, &statements.join(";\n")).await?;
    }
    let letters: Vec<Arrival> =
        batch.arrivals.iter().filter(|arrival| arrival.letter.is_some()).cloned().collect();
    if !letters.is_empty() {
        let begun = receive_as(conn, &batch.group, &letters, State::Done, View::Ours("")).await?;
        super::note(conn, &batch.group, &begun, Duration::ZERO).await?;
    }
    kept(conn, &batch.group, &batch.offsets).await
}

async fn keep(
    conn: &mut Conn,
    group: &str,
    letters: &[SetAside<'_>],
    offsets: &[Offset],
) -> Result<Done<Kept>, Fault> {
    put_later(conn, group, letters).await?;
    kept(conn, group, offsets).await
}

async fn kept(conn: &mut Conn, group: &str, offsets: &[Offset]) -> Result<Done<Kept>, Fault> {
    Ok(match move_on(conn, group, offsets).await? {
        Kept::Kept => Done::Commit(Kept::Kept),
        Kept::Fenced => Done::RollBack(Kept::Fenced),
    })
}

async fn overview(conn: &mut Conn) -> Result<Done<Vec<Overview>>, Fault> {
    let groups = say(conn, sql::GROUPS).await?.sets.swap_remove(0);
    let mut all = Vec::with_capacity(groups.len());
    for found in &groups {
        let group = row::text(found, 0)?.unwrap_or_default();
        let said = tell(conn, sql::COUNTS, &[group.into(), COUNTED_MAX.into(), group.into()]).await?;
        let (ledger, letters) =
            (said.row(0).ok_or_else(no_row)?, said.sets.get(1).and_then(|set| set.first()));
        let letters = letters.ok_or_else(no_row)?;
        let count = |row: &Row, at| row::int(row, at).map(|count| count as u64);
        all.push(Overview {
            group: group.to_owned(),
            ledger: count(ledger, 0)?,
            more: count(ledger, 0)? == COUNTED_MAX,
            open: count(ledger, 1)?,
            later: count(letters, 0)?,
            dead: count(letters, 1)?,
            behind: count(letters, 2)?,
            oldest: row::maybe_int(letters, 3)?.map(Timestamp::from_micros),
        });
    }
    Ok(Done::RollBack(all))
}

async fn judge(conn: &mut Conn, group: &str, number: u64, verdict: &Verdict) -> Result<Done<Judged>, Fault> {
    let which = [signed(number).into(), group.into()];
    let said = tell(conn, sql::LETTER, &which).await?;
    let Some(found) = said.row(0) else { return Ok(Done::RollBack(Judged::NotThere)) };
    let own = row::text(found, 0)?;
    match verdict {
        Verdict::Replay(None) if own.is_none() => return Ok(Done::RollBack(Judged::NoId)),
        Verdict::Replay(id) if is_another(id.as_ref().map(Id::as_str), own) => {
            return Ok(Done::RollBack(Judged::HasId));
        }
        Verdict::Replay(id) => {
            let [number, group] = which;
            let named = [id.as_ref().map(Id::as_str).into(), number, group];
            if own.is_none() {
                let said = tell(conn, sql::NAME, &[named.clone(), named.clone()].concat()).await?;
                let row = said.row(1).ok_or_else(no_row)?;
                let state = u8::try_from(row::int(row, 0)?).ok().and_then(State::from_byte);
                if row::int(row, 1)? == 0 && !mutant::on("inbox-id-given-twice") {
                    let damaged = || Error::new(Kind::Damaged, "the ledger holds a row that cannot be read");
                    return Ok(Done::RollBack(Judged::IdUsed(state.ok_or_else(damaged)?)));
                }
            }
            tell(conn, sql::REPLAY, &named).await?;
        }
        Verdict::Discard => {
            tell(conn, sql::DISCARD, &which).await?;
        }
    }
    Ok(Done::Commit(Judged::Made))
}

/// Whether a letter would be applied under another id than its own.
fn is_another(given: Option<&str>, own: Option<&str>) -> bool {
    given.is_some() && own.is_some() && given != own && !mutant::on("inbox-id-ignored")
}

/// Reads the columns of `due.sql` and `letters.sql`.
fn letter(found: &Row) -> Result<Letter, Error> {
    let damaged = || Error::new(Kind::Damaged, "a letter of the inbox holds something that cannot be read");
    let aside = u8::try_from(row::int(found, 4)?).ok().and_then(Aside::from_byte).ok_or_else(damaged)?;
    let again_at = row::maybe_int(found, 2)?.filter(|_| aside == Aside::Later);
    let text = |at| Ok::<_, Error>(row::text(found, at)?.unwrap_or_default().to_owned());
    let id = row::text(found, 8)?.map(Id::parse).transpose().map_err(|_| damaged())?;
    Ok(Letter {
        number: u64::try_from(row::int(found, 0)?).map_err(|_| damaged())?,
        group: text(5)?,
        id,
        message: Incoming {
            source: text(6)?,
            place: text(7)?,
            subject: text(9)?,
            key: row::text(found, 10)?.map(str::to_owned),
            headers: headers_of(&text(11)?),
            payload: row::bytes(found, 13)?.to_vec().into(),
        },
        aside,
        reason: text(12)?,
        tries: u32::try_from(row::int(found, 3)?).unwrap_or(u32::MAX),
        since: row::time(found, 1)?,
        again_at: again_at.map(Timestamp::from_micros),
    })
}
