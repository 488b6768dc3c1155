//! What is done with a ledger outside a handler's transaction.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::Error;
use semel_core::inbox::{
    Arrival, Aside, Assignment, Batch, Inbox, Judged, Kept, Letter, Offset, Overview, Received, SetAside,
    State, Swept, Verdict, asides,
};
use semel_core::store::Pending;
use semel_core::{Timestamp, clock, mutant};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use super::{advance, letters, receive_as, set_aside, set_aside_later};
use crate::postgres::chores::no_row;
use crate::postgres::connect::{Param, get};
use crate::postgres::fault::Fault;
use crate::postgres::pool::Link;
use crate::postgres::{PostgresStore, Shared};

const ASSIGN: &str = include_str!("../sql/inbox_assign.sql");
const DONE: &str = include_str!("../sql/inbox_done.sql");
const DUE: &str = include_str!("../sql/inbox_due.sql");
const WAITING: &str = include_str!("../sql/inbox_waiting.sql");
const LETTERS: &str = include_str!("../sql/inbox_letters.sql");
const NAME: &str = include_str!("../sql/inbox_name.sql");
const NAMED: &str = include_str!("../sql/inbox_named.sql");
const REPLAY: &str = include_str!("../sql/inbox_replay.sql");
const DISCARD: &str = include_str!("../sql/inbox_discard.sql");
const THERE: &str = include_str!("../sql/inbox_letter_there.sql");
const REWIND: &str = include_str!("../sql/inbox_rewind.sql");
const SWEEP: &str = include_str!("../sql/inbox_sweep.sql");
const OVERVIEW: &str = include_str!("../sql/inbox_overview.sql");
const SETTINGS: &str = include_str!("../sql/inbox_settings.sql");

/// Ledger rows of a group that are counted for people.
const COUNTED_MAX: i64 = 100_000;
/// How long a transaction of the ledger's own may stand still.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The ledgers in a PostgreSQL store.
pub struct PostgresInbox {
    shared: Arc<Shared>,
}

impl PostgresStore {
    /// The ledgers of consumers in this store. They use its connections.
    pub fn inbox(&self) -> PostgresInbox {
        PostgresInbox { shared: self.shared.clone() }
    }
}

/// How a transaction around a ledger begins.
pub(super) fn settings(idle_max: Duration) -> String {
    format!("{SETTINGS}SET LOCAL idle_in_transaction_session_timeout = {};\n", idle_max.as_millis())
}

impl PostgresInbox {
    pub(super) async fn link(&self) -> Result<Link<'_>, Error> {
        self.shared.ready().await?;
        self.shared.verbs.link().await
    }

    /// One transaction of the ledger's own.
    async fn transact<T>(
        &self,
        work: impl AsyncFnOnce(&Transaction<'_>) -> Result<Done<T>, Error>,
    ) -> Result<T, Error> {
        let mut link = self.link().await?;
        link.busy();
        let tx = link.client().transaction().await.map_err(|error| Fault::of(&error).error())?;
        tx.batch_execute(&settings(IDLE_MAX)).await.map_err(|error| Fault::of(&error).error())?;
        let done = match work(&tx).await? {
            Done::Commit(done) => {
                tx.commit().await.map_err(|error| Fault::of(&error).error().maybe_applied())?;
                done
            }
            Done::RollBack(done) => {
                tx.rollback().await.map_err(|error| Fault::of(&error).error())?;
                done
            }
        };
        link.done();
        Ok(done)
    }

    async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.transact(async |tx| {
            let rows = tx.query_typed(sql, params).await.map_err(|error| Fault::of(&error).error())?;
            Ok(Done::Commit(rows))
        })
        .await
    }
}

/// How a piece of work leaves its transaction.
enum Done<T> {
    Commit(T),
    RollBack(T),
}

impl Inbox for PostgresInbox {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    fn intend<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Vec<Received>> {
        Box::pin(self.transact(async |tx| {
            let begun = receive_as(tx, &batch.group, &batch.arrivals, State::Intended).await;
            let received = begun.map_err(|fault| fault.error())?.received;
            set_aside(tx, &batch.group, &asides(batch, &received)).await?;
            Ok(Done::Commit(received))
        }))
    }

    fn finish<'a>(&'a self, batch: &'a Batch, took: &'a [Duration]) -> Pending<'a, Kept> {
        let is_new = |(arrival, _): &(&'a Arrival, &'a Duration)| arrival.letter.is_none();
        let new: Vec<_> = batch.arrivals.iter().zip(took).filter(is_new).collect();
        let sources: Vec<&str> = new.iter().map(|(arrival, _)| &*arrival.message.source).collect();
        let ids: Vec<&str> = new.iter().map(|(arrival, _)| arrival.id.as_str()).collect();
        let took: Vec<i64> = new.iter().map(|(_, took)| clock::micros(**took)).collect();
        let letters: Vec<Arrival> =
            batch.arrivals.iter().filter(|arrival| arrival.letter.is_some()).cloned().collect();
        Box::pin(self.transact(async move |tx| {
            let params: [Param<'_>; 4] = [
                (&batch.group, Type::TEXT),
                (&sources, Type::TEXT_ARRAY),
                (&ids, Type::TEXT_ARRAY),
                (&took, Type::INT8_ARRAY),
            ];
            tx.query_typed(DONE, &params).await.map_err(|error| Fault::of(&error).error())?;
            if !letters.is_empty() {
                let taken = receive_as(tx, &batch.group, &letters, State::Done).await;
                taken.map_err(|fault| fault.error())?;
            }
            kept(tx, &batch.group, &batch.offsets).await
        }))
    }

    fn set_aside<'a>(
        &'a self,
        group: &'a str,
        letters: &'a [SetAside<'a>],
        offsets: &'a [Offset],
    ) -> Pending<'a, Kept> {
        Box::pin(self.transact(async move |tx| {
            set_aside_later(tx, group, letters).await?;
            kept(tx, group, offsets).await
        }))
    }

    fn due<'a>(&'a self, group: &'a str, limit: u32) -> Pending<'a, Vec<Letter>> {
        Box::pin(async move {
            let limit = i64::from(limit);
            let rows = self.ask(DUE, &[(&group, Type::TEXT), (&limit, Type::INT8)]).await?;
            rows.iter().map(letters::read).collect()
        })
    }

    fn waiting<'a>(&'a self, group: &'a str) -> Pending<'a, u64> {
        Box::pin(async move {
            let rows = self.ask(WAITING, &[(&group, Type::TEXT)]).await?;
            Ok(get::<i64>(rows.first().ok_or_else(no_row)?, 0)? as u64)
        })
    }

    fn assign<'a>(&'a self, group: &'a str, topic: &'a str, partition: i32) -> Pending<'a, Assignment> {
        Box::pin(async move {
            let params: [Param<'_>; 3] =
                [(&group, Type::TEXT), (&topic, Type::TEXT), (&partition, Type::INT4)];
            let rows = self.ask(ASSIGN, &params).await?;
            let row = rows.first().ok_or_else(no_row)?;
            Ok(Assignment { generation: get::<i64>(row, 0)? as u64, next: get(row, 1)? })
        })
    }

    fn rewind<'a>(
        &'a self,
        group: &'a str,
        topic: &'a str,
        partition: Option<i32>,
        to: i64,
    ) -> Pending<'a, u64> {
        Box::pin(async move {
            let params: [Param<'_>; 4] =
                [(&group, Type::TEXT), (&topic, Type::TEXT), (&partition, Type::INT4), (&to, Type::INT8)];
            Ok(self.ask(REWIND, &params).await?.len() as u64)
        })
    }

    fn sweep<'a>(&'a self, group: &'a str, kept: Duration, limit: u32) -> Pending<'a, Swept> {
        Box::pin(async move {
            let (kept, wanted) = (clock::micros(kept), i64::from(limit));
            let params: [Param<'_>; 3] = [(&group, Type::TEXT), (&kept, Type::INT8), (&wanted, Type::INT8)];
            let rows = self.ask(SWEEP, &params).await?;
            let row = rows.first().ok_or_else(no_row)?;
            let gone: [i64; 3] = [get(row, 0)?, get(row, 1)?, get(row, 2)?];
            Ok(Swept { deleted: gone[0] as u64, more: gone.contains(&wanted) })
        })
    }

    fn overview(&self) -> Pending<'_, Vec<Overview>> {
        Box::pin(async move {
            let rows = self.ask(OVERVIEW, &[(&COUNTED_MAX, Type::INT8)]).await?;
            let count = |row: &Row, at| get::<i64>(row, at).map(|count| count as u64);
            let overview = |row: &Row| {
                let ledger = get::<i64>(row, 1)?;
                Ok(Overview {
                    group: get(row, 0)?,
                    ledger: ledger as u64,
                    more: ledger == COUNTED_MAX,
                    open: count(row, 2)?,
                    later: count(row, 3)?,
                    dead: count(row, 4)?,
                    behind: count(row, 5)?,
                    oldest: get::<Option<i64>>(row, 6)?.map(Timestamp::from_micros),
                })
            };
            rows.iter().map(overview).collect()
        })
    }

    fn letters<'a>(
        &'a self,
        group: &'a str,
        only: Option<Aside>,
        after: u64,
        limit: u32,
    ) -> Pending<'a, Vec<Letter>> {
        Box::pin(async move {
            let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::from(limit));
            let only = only.map(|aside| aside as u8 as i16);
            let params: [Param<'_>; 4] =
                [(&group, Type::TEXT), (&after, Type::INT8), (&only, Type::INT2), (&limit, Type::INT8)];
            self.ask(LETTERS, &params).await?.iter().map(letters::read).collect()
        })
    }

    fn judge<'a>(&'a self, group: &'a str, number: u64, verdict: &'a Verdict) -> Pending<'a, Judged> {
        Box::pin(self.transact(async move |tx| judge(tx, group, number, verdict).await))
    }
}

async fn judge(
    tx: &Transaction<'_>,
    group: &str,
    number: u64,
    verdict: &Verdict,
) -> Result<Done<Judged>, Error> {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let ask = async |sql: &str, params: &[Param<'_>]| {
        tx.query_typed(sql, params).await.map_err(|error| Fault::of(&error).error())
    };
    let which: [Param<'_>; 2] = [(&group, Type::TEXT), (&number, Type::INT8)];
    let found = ask(THERE, &which).await?;
    let Some(letter) = found.first() else { return Ok(Done::RollBack(Judged::NotThere)) };
    let id = match verdict {
        Verdict::Replay(id) => id.as_ref().map(|id| id.as_str()),
        Verdict::Discard => {
            ask(DISCARD, &which).await?;
            return Ok(Done::Commit(Judged::Made));
        }
    };
    let [of_group, of_number] = which;
    let named: [Param<'_>; 3] = [of_group, of_number, (&id, Type::TEXT)];
    let own = get::<Option<&str>>(letter, 0)?;
    if is_another(id, own) {
        return Ok(Done::RollBack(Judged::HasId));
    }
    if own.is_none() {
        if id.is_none() {
            return Ok(Done::RollBack(Judged::NoId));
        }
        if ask(NAME, &named).await?.is_empty() && !mutant::on("inbox-id-given-twice") {
            let known = ask(NAMED, &named).await?;
            let state = known.first().map(|row| get::<i16>(row, 0)).transpose()?;
            let state = state.and_then(|state| State::from_byte(u8::try_from(state).ok()?));
            // Only what is done is swept between two statements.
            return Ok(Done::RollBack(Judged::IdUsed(state.unwrap_or(State::Done))));
        }
    }
    ask(REPLAY, &named).await?;
    Ok(Done::Commit(Judged::Made))
}

/// Whether a letter would be applied under another id than its own.
fn is_another(given: Option<&str>, own: Option<&str>) -> bool {
    given.is_some() && own.is_some() && given != own && !mutant::on("inbox-id-ignored")
}

async fn kept(tx: &Transaction<'_>, group: &str, offsets: &[Offset]) -> Result<Done<Kept>, Error> {
    Ok(match advance(tx, group, offsets).await? {
        Kept::Kept => Done::Commit(Kept::Kept),
        Kept::Fenced => Done::RollBack(Kept::Fenced),
    })
}
