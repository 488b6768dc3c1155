//! One batch at the server: a transaction of one statement, sent whole, answered whole; and a look at what the
//! claims met that were not granted.

use std::collections::HashMap;

use semel_core::claim::{Claim, Request};
use semel_core::clock::{Timestamp, micros};
use semel_core::error::Error;
use semel_core::record::{Moment, Record, Verb};
use semel_core::verbs::{Complete, Completion};
use semel_core::{OperationId, Token, mutant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{Live, Param, get};
use super::fault::Fault;
use super::pipeline::{End, Statement};
use super::{Shared, row, sql};
use crate::gather::{Batch, Reply};
use crate::horizon::{Horizon, Kept, Seen};

/// What came back.
pub(super) struct Landed {
    claims: HashMap<OperationId, Found>,
    /// Operations completed here, and by whom.
    completed: HashMap<OperationId, Complete>,
    pub(super) lowest: Option<Kept>,
    pub(super) highest: Option<Kept>,
}

/// What the claims of one operation meet.
struct Found {
    now: Timestamp,
    fresh: Token,
    met: Met,
}

enum Met {
    /// Nothing was there: the first to ask was granted.
    Nothing,
    /// A row, parsed when somebody's request gives it its identity.
    Row(Row),
    Record(Box<Record>),
}

const CLAIMING: (&str, &str) = ("pg-before-claim-commit", "pg-after-claim-commit");
const COMPLETING: (&str, &str) = ("pg-before-complete-commit", "pg-after-complete-commit");

/// Sends a batch and takes its answers: one round trip, one flush of the log.
pub(super) async fn fly(shared: &Shared, live: &Live, batch: &Batch, before: Seen) -> Result<Landed, Fault> {
    let claims = distinct(batch.claims.iter().map(|waiting| &waiting.call), Verb::operation);
    let completions = distinct(batch.completions.iter().map(|waiting| &waiting.call), Verb::operation);
    let (wishes, deeds, clock) = (Wishes::of(&claims), Deeds::of(&completions), shared.clock());
    let [clock, wishes @ ..] = wishes.params(&clock);
    let known = Known::of(before);
    let [known_id, known_token] = known.params();
    let params = [clock].into_iter().chain(wishes).chain(deeds.params()).chain([known_id, known_token]);
    let params: Vec<Param<'_>> = params.collect();
    let crashes: &'static [_] = match (claims.is_empty(), completions.is_empty()) {
        (false, false) => &[CLAIMING, COMPLETING],
        (false, true) => &[CLAIMING],
        _ => &[COMPLETING],
    };
    let fly = sql::fly();
    let statements: Vec<Statement<'_>> = fly.iter().map(|sql| (&**sql, &params[..])).collect();
    let begin = Some(shared.begin_flight.as_str());
    let answers = live.run(shared.call_timeout, begin, &statements, End::Commit(crashes)).await?;
    // Committed: from here on an unreadable row is its caller's trouble alone.
    Ok(Landed::of(answers.into_iter().flatten(), &completions))
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

/// Reads what claims met that were not granted. They wrote nothing, so this may fail.
pub(super) async fn meet(
    shared: &Shared,
    live: &Live,
    landed: &mut Landed,
    lost: &[OperationId],
) -> Result<(), Fault> {
    let clock = shared.clock();
    let ids: Vec<&[u8]> = lost.iter().map(|id| &id.as_bytes()[..]).collect();
    let params: [Param<'_>; 2] = [(&clock, Type::INT8), (&ids, Type::BYTEA_ARRAY)];
    for row in live.query(shared.call_timeout, sql::MET, &params).await? {
        if let Ok((id, found)) = Found::met(row) {
            landed.claims.insert(id, found);
        }
    }
    Ok(())
}

impl Landed {
    /// What comes back with a token was claimed, what comes back without one was completed.
    fn of(rows: impl Iterator<Item = Row>, completions: &[(OperationId, &Complete)]) -> Self {
        let mut claims = HashMap::new();
        let mut completed = HashMap::with_capacity(completions.len());
        for (id, found) in rows.filter_map(|row| Found::landed(&row).ok()) {
            if let Some(granted) = found {
                claims.insert(id, granted);
            } else if let Ok(at) = completions.binary_search_by_key(&id, |(id, _)| *id) {
                completed.insert(id, completions[at].1.clone());
            }
        }
        let granted =
            || claims.iter().map(|(id, found): (_, &Found)| Kept { operation: *id, token: found.fresh });
        let lowest = granted().min_by_key(|kept| kept.token);
        let highest = granted().max_by_key(|kept| kept.token);
        Self { claims, completed, lowest, highest }
    }

    /// Whether a claim of this operation was granted here.
    pub(super) fn has_granted(&self, operation: OperationId) -> bool {
        self.claims.contains_key(&operation)
    }

    /// The reply to one claim. Of several for one operation the first was sent; the others meet what
    /// it left behind, as if they had come right after it.
    pub(super) fn claim(&mut self, horizon: &Horizon, before: Seen, request: &Request) -> Reply<Claim> {
        let Some(found) = self.claims.get_mut(&request.operation.id()) else { return Reply::AskAlone };
        if let Met::Row(row) = &found.met {
            match row::rest(row, 3, request.operation.clone()) {
                Ok(record) => found.met = Met::Record(Box::new(record)),
                Err(_) => return Reply::AskAlone,
            }
        }
        let step = request.decide(found.record(), found.moment());
        if let Claim::WentBack { held } = &step.answer {
            horizon.note_ahead(*held, before);
        }
        match (&found.met, step.put) {
            (_, None) => Reply::Answer(step.answer),
            (Met::Nothing, Some(written)) => {
                found.met = Met::Record(Box::new(written));
                Reply::Answer(step.answer)
            }
            (_, Some(_)) => Reply::AskAlone,
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
    /// A row of `fly.sql`; `None` for a completion.
    fn landed(row: &Row) -> Result<(OperationId, Option<Self>), Error> {
        let id = row::id(row, 0)?;
        let Some(fresh) = get::<Option<i64>>(row, 1)? else { return Ok((id, None)) };
        Ok((id, Some(Self { now: row::time(row, 2)?, fresh: Token(fresh as u64), met: Met::Nothing })))
    }

    fn met(row: Row) -> Result<(OperationId, Self), Error> {
        let (now, fresh) = (row::time(&row, 0)?, Token(get::<i64>(&row, 1)? as u64));
        Ok((row::id(&row, 2)?, Self { now, fresh, met: Met::Row(row) }))
    }

    fn record(&self) -> Option<&Record> {
        match &self.met {
            Met::Record(record) => Some(record),
            Met::Nothing | Met::Row(_) => None,
        }
    }

    /// The token that was drawn; once it is given away, the next.
    fn moment(&self) -> Moment {
        let given = self.record().is_some_and(|record| record.token == self.fresh);
        Moment { now: self.now, fresh: Token(self.fresh.0 + u64::from(given)) }
    }
}

/// Claims, column by column, for `fly.sql`.
struct Wishes<'a> {
    ids: Vec<&'a [u8]>,
    namespaces: Vec<&'a str>,
    tenants: Vec<Option<&'a str>>,
    routes: Vec<&'a str>,
    keys: Vec<&'a str>,
    nonces: Vec<&'a [u8]>,
    fp_versions: Vec<i32>,
    fp_digests: Vec<&'a [u8]>,
    fp_paths: Vec<&'a [u8]>,
    recoveries: Vec<i16>,
    leases: Vec<i64>,
    run_maxes: Vec<i64>,
    ttls: Vec<i64>,
    windows: Vec<i64>,
    subjects: Vec<Option<&'a str>>,
}

impl<'a> Wishes<'a> {
    fn of(claims: &'a [(OperationId, &'a Request)]) -> Self {
        let scope = |request: &'a Request| request.operation.scope();
        Self {
            ids: column(claims, |(id, _)| &id.as_bytes()[..]),
            namespaces: column(claims, |(_, r)| scope(r).namespace()),
            tenants: column(claims, |(_, r)| scope(r).tenant()),
            routes: column(claims, |(_, r)| scope(r).route()),
            keys: column(claims, |(_, r)| r.operation.key().as_str()),
            nonces: column(claims, |(_, r)| &r.nonce.as_bytes()[..]),
            fp_versions: column(claims, |(_, r)| r.print.version as i32),
            fp_digests: column(claims, |(_, r)| &r.print.digest[..]),
            fp_paths: column(claims, |(_, r)| r.print.paths.encode()),
            recoveries: column(claims, |(_, r)| i16::from(r.terms.recovery as u8)),
            leases: column(claims, |(_, r)| micros(r.terms.lease)),
            run_maxes: column(claims, |(_, r)| micros(r.terms.run_max)),
            ttls: column(claims, |(_, r)| micros(r.terms.ttl)),
            windows: column(claims, |(_, r)| micros(r.terms.retry_window)),
            subjects: column(claims, |(_, r)| r.subject.as_deref()),
        }
    }

    fn params<'p>(&'p self, clock: &'p Option<i64>) -> [Param<'p>; 16] {
        [
            (clock, Type::INT8),
            (&self.ids, Type::BYTEA_ARRAY),
            (&self.namespaces, Type::TEXT_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.routes, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.nonces, Type::BYTEA_ARRAY),
            (&self.fp_versions, Type::INT4_ARRAY),
            (&self.fp_digests, Type::BYTEA_ARRAY),
            (&self.fp_paths, Type::BYTEA_ARRAY),
            (&self.recoveries, Type::INT2_ARRAY),
            (&self.leases, Type::INT8_ARRAY),
            (&self.run_maxes, Type::INT8_ARRAY),
            (&self.ttls, Type::INT8_ARRAY),
            (&self.windows, Type::INT8_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
        ]
    }
}

/// Completions, column by column, for `fly.sql`.
struct Deeds<'a> {
    ids: Vec<&'a [u8]>,
    tokens: Vec<i64>,
    nonces: Vec<&'a [u8]>,
    outcomes: Vec<&'a [u8]>,
}

impl<'a> Deeds<'a> {
    fn of(completions: &'a [(OperationId, &'a Complete)]) -> Self {
        Self {
            ids: column(completions, |(id, _)| &id.as_bytes()[..]),
            tokens: column(completions, |(_, c)| c.holder.token.0 as i64),
            nonces: column(completions, |(_, c)| &c.holder.nonce.as_bytes()[..]),
            outcomes: column(completions, |(_, c)| &c.outcome[..]),
        }
    }

    fn params(&self) -> [Param<'_>; 4] {
        [
            (&self.ids, Type::BYTEA_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.nonces, Type::BYTEA_ARRAY),
            (&self.outcomes, Type::BYTEA_ARRAY),
        ]
    }
}

/// The newest record this store knows of, which has to be there.
pub(super) struct Known {
    id: Option<Vec<u8>>,
    token: Option<i64>,
}

impl Known {
    pub(super) fn of(seen: Seen) -> Self {
        let last = seen.last.filter(|_| !mutant::on("pg-lost-record-not-asked-for"));
        Self {
            id: last.map(|last| last.operation.as_bytes().to_vec()),
            token: last.map(|last| last.token.0 as i64),
        }
    }

    pub(super) fn params(&self) -> [Param<'_>; 2] {
        [(&self.id, Type::BYTEA), (&self.token, Type::INT8)]
    }
}

fn column<'a, C, T>(calls: &'a [C], of: impl FnMut(&'a C) -> T) -> Vec<T> {
    calls.iter().map(of).collect()
}
