//! What concerns more than one operation, or none: pages, purges by subject, the store itself.

use mysql_async::{Row, Value};
use semel_core::error::{Error, Kind};
use semel_core::fingerprint::HashKey;
use semel_core::record::{Record, State, Verb};
use semel_core::store::{Filter, LOOK_MAX, Mark, Page, Status, SubjectPurge};
use semel_core::verbs::Purge;
use semel_core::{Key, Nonce, OperationId, Token, mutant};

use super::connect::Live;
use super::fault::Fault;
use super::pool::retried;
use super::{Shared, row, sql, step};
use crate::horizon::{Found, Seen};

pub(super) async fn get_record(shared: &Shared, operation: OperationId) -> Result<Option<Record>, Error> {
    let rows = retried!(shared.verbs.tries(), live => live.ask(sql::GET, vec![row::key(operation)]))?.rows;
    rows.first().map(row::record).transpose()
}

pub(super) async fn list(shared: &Shared, filter: &Filter, after: Token, limit: u32) -> Result<Page, Error> {
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), limit.min(LOOK_MAX));
    retried!(shared.verbs.tries(), live => page(shared, live, filter, after, limit))
}

/// Two statements that write nothing. A claim that commits between them may or may not be seen.
async fn page(
    shared: &Shared,
    live: &mut Live,
    filter: &Filter,
    after: i64,
    limit: u32,
) -> Result<Page, Fault> {
    let look = live.ask(sql::LOOK, vec![after.into(), limit.into()]).await?.rows;
    let look = look.first().ok_or_else(no_row)?;
    let (seen, last) = (row::int(look, 0)?, row::maybe_int(look, 1)?);
    let now = shared.now(row::time(look, 2)?);
    let mut records = Vec::new();
    if let Some(last) = last {
        let found = live.ask(sql::LIST, wanted(filter, after, last)).await?.rows;
        records.extend(found.iter().filter_map(listed).filter(|record| filter.matches(record)));
    }
    let next = last.map(|token| Token(token as u64)).filter(|_| seen == i64::from(limit));
    Ok(Page { now, records, next })
}

fn listed(row: &Row) -> Option<Record> {
    match row::record(row) {
        Ok(record) => Some(Record { outcome: None, ..record }),
        // One that cannot be read must not hide the others from the recoverer.
        Err(error) => {
            tracing::error!(%error, "an operation is left out of a listing: it cannot be read");
            None
        }
    }
}

/// A filter, as `list.sql` takes it.
fn wanted(filter: &Filter, after: i64, last: i64) -> Vec<Value> {
    let mut values: Vec<Value> = vec![after.into(), last.into()];
    let all = [State::InProgress, State::Completed, State::Released, State::Unknown, State::Tombstone];
    let states = filter.states.as_deref().unwrap_or(&all);
    // There is no state 0.
    let states = states.iter().map(|state| *state as u8).chain(std::iter::repeat(0));
    values.extend(states.take(all.len()).map(Value::from));
    let tenant = filter.tenant.as_ref().and_then(Option::as_deref);
    values.extend([
        filter.namespace.as_deref().into(),
        u8::from(filter.tenant.is_some()).into(),
        tenant.into(),
        filter.route.as_deref().into(),
        filter.key.as_ref().map(Key::as_str).into(),
    ]);
    values
}

pub(super) async fn purge_subject(
    shared: &Shared,
    subject: &str,
    nonce: Nonce,
    note: &str,
    limit: u32,
) -> Result<SubjectPurge, Error> {
    let of = Subject { name: subject, nonce, note, limit };
    retried!(shared.verbs.tries(), live => of.purge(shared, live))
}

/// Whose records are purged, and why.
struct Subject<'a> {
    name: &'a str,
    nonce: Nonce,
    note: &'a str,
    limit: u32,
}

impl Subject<'_> {
    /// One transaction: all of this step's records become tombstones, or none.
    async fn purge(&self, shared: &Shared, live: &mut Live) -> Result<SubjectPurge, Fault> {
        let (name, limit) = (self.name, self.limit as usize);
        live.begin().await?;
        let open = live.ask(sql::SUBJECT_OPEN, vec![name.into(), name.into()]).await?.rows;
        let open = row::int(open.first().ok_or_else(no_row)?, 0)? as u64;
        let more = limit as u64 + 1;
        let ended = live.ask(sql::SUBJECT, vec![name.into(), name.into(), more.into()]).await?.rows;
        let ids: Vec<_> = ended.iter().take(limit).map(row::id).collect::<Result<_, _>>()?;
        let held = take(live, sql::TAKE_ALL, &ids).await?;
        let moment = step::moment(shared, live).await?;
        let mut tombstones = Vec::with_capacity(held.len());
        for row in &held {
            let record = row::record(row)?;
            // It may have changed before it was held; the next call meets it as it is then.
            if record.subject.as_deref() == Some(name) {
                let (operation, note) = (record.operation.id(), self.note.to_owned());
                let purge = Purge { operation, nonce: self.nonce, note };
                tombstones.extend(purge.decide(Some(&record), moment).put);
            }
        }
        step::put_all(live, &tombstones).await?;
        live.commit(&[]).await?;
        Ok(SubjectPurge { purged: tombstones.len() as u64, open, more: ended.len() > limit })
    }
}

/// Records by their ids, held until the transaction ends.
pub(super) async fn take(live: &mut Live, sql: &str, ids: &[OperationId]) -> Result<Vec<Row>, Fault> {
    let mut held = Vec::with_capacity(ids.len());
    for ids in ids.chunks(sql::ROWS_MAX) {
        held.extend(live.ask(&sql::each(sql, sql::fill(ids.len())), filled(ids)).await?.rows);
    }
    Ok(held)
}

/// Ids, filled up to a number statements are prepared for.
pub(super) fn filled(ids: &[OperationId]) -> Vec<Value> {
    let last = ids.last().into_iter().cycle();
    ids.iter().chain(last).take(sql::fill(ids.len())).map(|id| row::key(*id)).collect()
}

/// Looks how the store is, also one that went back.
pub(super) async fn look(shared: &Shared) -> Result<(), Error> {
    retried!(shared.chores.tries_on_any(), live => shared.connector.examine(live)).map(drop)
}

async fn describe(shared: &Shared, live: &mut Live) -> Result<(Found, Vec<Row>), Fault> {
    let found = shared.connector.examine(live).await?;
    Ok((found, live.say(sql::HASH_KEYS).await?))
}

pub(super) async fn status(shared: &Shared) -> Result<Status, Error> {
    let (found, keys) = retried!(shared.chores.tries_on_any(), live => describe(shared, live))?;
    let mut hash_keys = Vec::with_capacity(keys.len());
    for row in &keys {
        let secret = row::bytes(row, 1)?.try_into().map_err(|_| {
            Error::new(Kind::Damaged, "a key of fingerprints is not 32 bytes long; restore semel_hash_key")
        })?;
        hash_keys.push(HashKey::new(row::int(row, 0)? as u32, secret));
    }
    let went_back_from = shared.horizon.behind();
    Ok(Status { store_id: found.store_id, mark: found.mark, went_back_from, hash_keys })
}

/// One transaction: a new epoch, and tokens above all that may have been given.
async fn accept(shared: &Shared, live: &mut Live, by: &str) -> Result<([u8; 16], Mark), Fault> {
    live.begin().await?;
    live.say(sql::HOLD_META).await?;
    let found = shared.connector.examine(live).await?;
    let mark = found.mark.acknowledged(shared.horizon.seen().mark);
    let (epoch, token) = (number(mark.epoch)?, number(mark.token.0)?);
    live.ask(sql::ACKNOWLEDGE, vec![epoch.into(), found.here.clone().into(), by.into()]).await?;
    if !mutant::on("my-acknowledged-tokens-restart") {
        live.ask(sql::SET_TOKEN, vec![token.into()]).await?;
    }
    live.commit(&[]).await?;
    Ok((found.store_id, mark))
}

pub(super) async fn acknowledge(shared: &Shared, by: &str) -> Result<Mark, Error> {
    let (store_id, mark) = retried!(shared.chores.tries_on_any(), live => accept(shared, live, by))?;
    shared.horizon.accept(store_id, mark);
    if let Some(path) = shared.witness.clone() {
        let seen = Seen { store_id: Some(store_id), mark, last: None };
        super::write_witness(path, seen).await.map_err(|error| {
            Error::new(Kind::Misconfigured, "acknowledged, but the witness cannot be written").because(error)
        })?;
    }
    Ok(mark)
}

pub(super) async fn rotate_hash_key(shared: &Shared) -> Result<u32, Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| Error::new(Kind::Misconfigured, "no random bytes").because(error.to_string()))?;
    retried!(shared.chores.tries(), live => add_key(live, &secret))
}

async fn add_key(live: &mut Live, secret: &[u8]) -> Result<u32, Fault> {
    live.begin().await?;
    live.say(sql::HOLD_META).await?;
    let next = live.say(sql::NEW_KEY).await?;
    let version = row::int(next.first().ok_or_else(no_row)?, 0)? as u32;
    live.ask(sql::ROTATE, vec![version.into(), secret.into()]).await?;
    live.commit(&[]).await?;
    Ok(version)
}

fn number(number: u64) -> Result<i64, Error> {
    i64::try_from(number)
        .map_err(|_| Error::new(Kind::Damaged, "tokens have run out: the counter is at its end"))
}

pub(super) fn no_row() -> Error {
    Error::new(Kind::Damaged, "MySQL answered without a row where there is always one")
}
