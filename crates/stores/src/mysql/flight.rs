//! One batch at the server: a transaction of a few statements with many rows each; and a look at what the
//! claims met that were not granted.

use std::collections::HashMap;

use mysql_async::{Row, Value};
use semel_core::claim::{Claim, Request};
use semel_core::error::Error;
use semel_core::record::{Moment, Record, Verb};
use semel_core::verbs::{Complete, Completion};
use semel_core::{OperationId, Token};

use super::connect::{Crashes, Live};
use super::fault::Fault;
use super::{Shared, row, sql, step};
use crate::gather::{Batch, Reply};
use crate::horizon::{Horizon, Seen};

const CLAIMING: (&str, &str) = ("my-before-claim-commit", "my-after-claim-commit");
const COMPLETING: (&str, &str) = ("my-before-complete-commit", "my-after-complete-commit");

/// What came of a batch.
pub(super) struct Landed {
    /// What the claims of each operation meet.
    claims: HashMap<OperationId, Found>,
    /// Operations completed here, and by whom. All of the batch's, or none that can be told.
    completed: HashMap<OperationId, Complete>,
    drawn: Option<(Token, Token)>,
}

struct Found {
    moment: Moment,
    met: Met,
}

enum Met {
    /// Nothing was there: this was written for the first to ask.
    Written(Box<Record>),
    /// A row, parsed when somebody's request gives it its identity.
    Row(Box<Row>),
    Record(Box<Record>),
}

/// Sends a batch and takes its answers: one transaction, one flush of the log.
pub(super) async fn fly(shared: &Shared, live: &mut Live, batch: &Batch) -> Result<Landed, Fault> {
    let claims = distinct(batch.claims.iter().map(|waiting| &waiting.call), Verb::operation);
    let completions = distinct(batch.completions.iter().map(|waiting| &waiting.call), Verb::operation);
    let moment = step::begin_with(shared, live.within(shared.call_timeout), claims.len()).await?;
    let wishes = wishes(&claims, moment);
    // Claims first, in every batch: fewer circles of batches that wait for each other.
    let granted = claims.is_empty() || claim(live, &wishes).await?;
    let completed = completions.is_empty() || complete(live, &completions, moment).await?;
    let crashes: Crashes = match (claims.is_empty(), completions.is_empty()) {
        (false, false) => &[CLAIMING, COMPLETING],
        (false, true) => &[CLAIMING],
        _ => &[COMPLETING],
    };
    live.commit(crashes).await?;
    let done = completions.iter().filter(|_| completed);
    Ok(Landed {
        drawn: wishes.first().zip(wishes.last()).map(|(first, last)| (first.token, last.token)),
        claims: if granted { wishes.into_iter().map(Found::written).collect() } else { HashMap::new() },
        completed: done.map(|(id, complete)| (*id, (*complete).clone())).collect(),
    })
}

/// One call per operation, in the order of ids: two batches that meet wait for each other in one
/// direction only.
fn distinct<'a, Call>(
    calls: impl Iterator<Item = &'a Call>,
    id: impl Fn(&Call) -> OperationId,
) -> Vec<(OperationId, &'a Call)> {
    let mut calls: Vec<_> = calls.map(|call| (id(call), call)).collect();
    // Stable: of several calls for one operation the first to come goes.
    calls.sort_by_key(|(id, _)| *id);
    calls.dedup_by_key(|(id, _)| *id);
    calls
}

/// The records that first claims would make, each with its token.
fn wishes(claims: &[(OperationId, &Request)], moment: Moment) -> Vec<Record> {
    let fresh = (moment.fresh.0..).map(|token| Moment { fresh: Token(token), ..moment });
    claims.iter().zip(fresh).filter_map(|((_, request), moment)| request.decide(None, moment).put).collect()
}

/// Writes records where there were none. `true`: that was so for all of them.
async fn claim(live: &mut Live, wishes: &[Record]) -> Result<bool, Fault> {
    let rows = sql::fill(wishes.len());
    let mut values = Vec::with_capacity(rows * (row::COLUMNS + 1));
    // Repeating the last one meets what it has just written, and changes nothing.
    let repeated = wishes.iter().chain(wishes.last().into_iter().cycle());
    repeated.take(rows).for_each(|record| row::values(record, &mut values));
    let done = live.ask(&sql::each(&sql::claim(), rows), values).await?;
    Ok(done.changed == wishes.len() as u64)
}

/// Stores outcomes. `true`: of all of them.
async fn complete(
    live: &mut Live,
    completions: &[(OperationId, &Complete)],
    moment: Moment,
) -> Result<bool, Fault> {
    let rows = sql::fill(completions.len());
    let last = completions.last().into_iter().cycle();
    let mut values: Vec<Value> = Vec::with_capacity(1 + 5 * rows);
    values.push(moment.now.as_micros().into());
    // The repeated rows bring no outcome: the first of several alike is the one that counts.
    let none = completions.last().into_iter().cycle().map(|(id, _)| (*id, &[][..]));
    let outcomes = completions.iter().map(|(id, complete)| (*id, &complete.outcome[..])).chain(none);
    for (id, outcome) in outcomes.take(rows) {
        values.extend([row::key(id), outcome.into()]);
    }
    for (id, complete) in completions.iter().chain(last).take(rows) {
        let holder = &complete.holder;
        values.extend([row::key(*id), (holder.token.0 as i64).into(), holder.nonce.as_bytes()[..].into()]);
    }
    let done = live.ask(&sql::each(&sql::complete(), rows), values).await?;
    Ok(done.changed == completions.len() as u64)
}

/// Reads what claims met, once those that could be granted are.
pub(super) async fn meet(
    shared: &Shared,
    live: &mut Live,
    landed: &mut Landed,
    ids: &[OperationId],
) -> Result<(), Fault> {
    let rows = sql::fill(ids.len());
    let last = ids.last().into_iter().cycle();
    let values = ids.iter().chain(last).take(rows).map(|id| row::key(*id)).collect();
    let met = live.within(shared.call_timeout).ask(&sql::each(sql::MET, rows), values).await?;
    for row in met.rows {
        if let Ok((id, found)) = Found::met(shared, row) {
            landed.claims.insert(id, found);
        }
    }
    Ok(())
}

impl Landed {
    /// The lowest and the highest token drawn.
    pub(super) fn drawn(&self) -> Option<(Token, Token)> {
        self.drawn
    }

    /// The operations of claims of which nothing is known yet.
    pub(super) fn unmet(&self, batch: &Batch) -> Vec<OperationId> {
        let claims = distinct(batch.claims.iter().map(|waiting| &waiting.call), Verb::operation);
        claims.into_iter().map(|(id, _)| id).filter(|id| !self.claims.contains_key(id)).collect()
    }

    /// Whether this claim was granted here.
    pub(super) fn has_granted(&self, request: &Request) -> bool {
        let found = self.claims.get(&request.operation.id());
        let nonce = found.and_then(|found| match &found.met {
            Met::Written(record) | Met::Record(record) => Some(record.nonce),
            Met::Row(row) => row::nonce(row).ok(),
        });
        nonce == Some(request.nonce)
    }

    /// The reply to one claim. Of several for one operation the first was sent; the others meet what
    /// it left behind, as if they had come right after it.
    pub(super) fn claim(&mut self, horizon: &Horizon, before: Seen, request: &Request) -> Reply<Claim> {
        let Some(found) = self.claims.get_mut(&request.operation.id()) else { return Reply::AskAlone };
        if let Met::Row(row) = &found.met {
            match row::rest(row, request.operation.clone()) {
                Ok(record) => found.met = Met::Record(Box::new(record)),
                Err(_) => return Reply::AskAlone,
            }
        }
        let record = match &found.met {
            Met::Written(record) | Met::Record(record) => record,
            Met::Row(_) => return Reply::AskAlone,
        };
        let step = request.decide(Some(record), found.moment);
        if let Claim::WentBack { held } = &step.answer {
            horizon.note_ahead(*held, before);
        }
        match step.put {
            None => Reply::Answer(step.answer),
            Some(_) => Reply::AskAlone,
        }
    }

    /// The reply to one completion.
    pub(super) fn completion(&self, complete: &Complete) -> Reply<Completion> {
        match self.completed.get(&complete.holder.operation) {
            Some(stored) if stored.holder == complete.holder && stored.outcome == complete.outcome => {
                Reply::Answer(Completion::Stored)
            }
            _ => Reply::AskAlone,
        }
    }
}

impl Found {
    /// A claim that was granted: whoever repeats it hears the same, and others find it taken.
    fn written(record: Record) -> (OperationId, Self) {
        let moment = Moment { now: record.attempt_at, fresh: Token(record.token.0 + 1) };
        (record.operation.id(), Self { moment, met: Met::Written(Box::new(record)) })
    }

    fn met(shared: &Shared, row: Row) -> Result<(OperationId, Self), Error> {
        let now = shared.now(row::time(&row, row::COLUMNS)?);
        let fresh = Token(row::int(&row, row::COLUMNS + 1)? as u64);
        Ok((row::id(&row)?, Self { moment: Moment { now, fresh }, met: Met::Row(Box::new(row)) }))
    }
}
