//! One verb at a time: lock the row, decide by the core's rules, write, commit.
//!
//! Everything that is not a plain first claim or a plain completion goes this way, and whatever the
//! batches could not answer. Two round trips: what is there, and what comes of it.

use semel_core::error::{Error, Kind};
use semel_core::record::{Moment, Record, Verb};
use semel_core::{Backoff, Nonce, Token};
use tokio::time::sleep;
use tokio_postgres::types::{ToSql, Type};

use super::chores::no_row;
use super::connect::get;
use super::fault::Fault;
use super::flight::Known;
use super::pipeline::{End, Statement};
use super::pool::Link;
use super::row::{self, Columns};
use super::{Shared, sql};
use crate::horizon::{Kept, Seen};

/// How often a step that lost a race or a deadlock is taken again.
const TRIES_MAX: u32 = 8;

const CRASHES: &[(&str, &str)] = &[("pg-before-step-commit", "pg-after-step-commit")];

/// Runs a verb by itself.
///
/// # Cancellation
/// Safe. The transaction is committed or not, as if its answer had been lost.
pub(super) async fn step<V: Verb>(shared: &Shared, verb: &V) -> Result<V::Answer, Error> {
    let mut backoff = Backoff::new(Nonce::random());
    for _ in 0..TRIES_MAX {
        let mut link = shared.verbs.link().await?;
        link.busy();
        match attempt(shared, &mut link, verb).await {
            Ok(Some(answer)) => {
                link.done();
                return Ok(answer);
            }
            // Somebody inserted the row in between: decide again with it.
            Ok(None) => link.done(),
            Err(fault) => {
                link.roll_back(&fault).await;
                drop(link);
                if !fault.again || !fault.changed_nothing() {
                    return Err(fault.error());
                }
                sleep(backoff.next_pause()).await;
            }
        }
    }
    Err(Error::new(Kind::Busy, "too many conflicts about one operation; try again"))
}

async fn attempt<V: Verb>(
    shared: &Shared,
    link: &mut Link<'_>,
    verb: &V,
) -> Result<Option<V::Answer>, Fault> {
    let seen = shared.horizon.seen();
    let (current, moment) = fetch(shared, link, verb, seen).await?;
    let step = verb.decide(current.as_ref(), moment);
    let Some(put) = step.put else {
        // Nothing was written, so nothing can be lost with the COMMIT.
        link.live().run(shared.call_timeout, None, &[("COMMIT", &[])], End::Open).await?;
        return Ok(Some(step.answer));
    };
    let written = write(shared, link, &put, current.is_some()).await?;
    if written && V::TAKES_TOKEN && put.token == moment.fresh {
        // It is committed, and must not be believed.
        if !shared.horizon.note(moment.fresh, seen) {
            return Err(Fault::went_back(&shared.horizon));
        }
        shared.horizon.keep(Kept { operation: put.operation.id(), token: put.token });
    }
    Ok(written.then_some(step.answer))
}

/// Locks the row and reads the time, in one round trip.
async fn fetch<V: Verb>(
    shared: &Shared,
    link: &Link<'_>,
    verb: &V,
    seen: Seen,
) -> Result<(Option<Record>, Moment), Fault> {
    let (id, clock, known) = (verb.operation(), shared.clock(), Known::of(seen));
    let id = &id.as_bytes()[..];
    let (lock, moment) = (sql::lock(), if V::TAKES_TOKEN { sql::fresh() } else { sql::MOMENT.into() });
    let [known_id, known_token] = known.params();
    let asked = [(&clock as &(dyn ToSql + Sync), Type::INT8), known_id, known_token];
    let asked = if V::TAKES_TOKEN { &asked[..] } else { &asked[..1] };
    let statements: [Statement<'_>; 2] = [(&lock, &[(&id, Type::BYTEA)]), (&moment, asked)];
    let answers = link.live().run(shared.call_timeout, Some(&shared.begin), &statements, End::Open).await?;
    let [locked, moment] = &answers[..] else { return Err(no_row().into()) };
    let moment = moment.first().ok_or_else(no_row)?;
    let fresh = get::<Option<i64>>(moment, 1)?.unwrap_or(0);
    let now = row::time(moment, 0)?;
    if V::TAKES_TOKEN && get::<bool>(moment, 2)? {
        shared.horizon.lost(seen);
        return Err(shared.horizon.refusal().into());
    }
    let current = locked.first().map(|row| row::record(row, 0)).transpose()?;
    Ok((current, Moment { now, fresh: Token(fresh as u64) }))
}

/// Writes what was decided and commits. `false`: somebody else inserted the row meanwhile.
async fn write(shared: &Shared, link: &Link<'_>, put: &Record, exists: bool) -> Result<bool, Fault> {
    let columns = Columns::of(std::slice::from_ref(put));
    let (sql, params) =
        if exists { (sql::PUT, columns.put().to_vec()) } else { (sql::INSERT, columns.insert()) };
    let answers = link.live().run(shared.call_timeout, None, &[(sql, &params)], End::Commit(CRASHES)).await?;
    match answers.first().map_or(0, Vec::len) {
        1 => Ok(true),
        0 if !exists => Ok(false),
        // The row was locked and is gone or doubled: no rule of ours does that.
        _ => Err(Fault::new(Kind::Damaged, "a locked row of semel_operation was not there to be written")),
    }
}
