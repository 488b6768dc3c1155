//! What concerns more than one operation, or none: pages, purges by subject, the store itself.

use semel_core::error::{Error, Kind};
use semel_core::fingerprint::HashKey;
use semel_core::record::{Moment, Record, Verb};
use semel_core::store::{Filter, LOOK_MAX, Mark, Page, Status, SubjectPurge};
use semel_core::verbs::Purge;
use semel_core::{Key, Nonce, OperationId, Token};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{self, Param, get};
use super::fault::Fault;
use super::pipeline::{End, Statement};
use super::pool::Link;
use super::row::{self, Columns};
use super::{Shared, sql};
use crate::horizon::Seen;

pub(super) async fn get_record(shared: &Shared, operation: OperationId) -> Result<Option<Record>, Error> {
    let link = shared.verbs.link().await?;
    let id = &operation.as_bytes()[..];
    let rows = read(shared, link, sql::GET, &[(&id, Type::BYTEA)]).await?;
    rows.first().map(|found| row::record(found, 0)).transpose()
}

/// In a transaction of its own, for the server's limits on how long a statement may take.
pub(super) async fn list(shared: &Shared, filter: &Filter, after: Token, limit: u32) -> Result<Page, Error> {
    let mut link = shared.verbs.link().await?;
    let (clock, after) = (shared.clock(), i64::try_from(after.0).unwrap_or(i64::MAX));
    let (limit, wanted) = (i64::from(limit.min(LOOK_MAX)), Wanted::of(filter));
    let look: [Param<'_>; 3] = [(&clock, Type::INT8), (&after, Type::INT8), (&limit, Type::INT8)];
    let params: Vec<Param<'_>> = look.into_iter().chain(wanted.params()).collect();
    let rows = transaction(&mut link, async |link| {
        // Nothing is written, so nothing can be lost with the COMMIT.
        let list: [Statement<'_>; 2] = [(sql::LIST, &params), ("COMMIT", &[])];
        let answers = link.live().run(shared.call_timeout, Some(&shared.begin), &list, End::Open).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    })
    .await?;
    let first = rows.first().ok_or_else(no_row)?;
    let (now, looked) = (row::time(first, 0)?, get::<i64>(first, 1)?);
    let last = get::<Option<i64>>(first, 2)?.map(|token| Token(token as u64));
    let mut records = Vec::with_capacity(rows.len());
    for row in &rows {
        // With no match among what was looked at, one row comes with no record in it.
        if get::<Option<&[u8]>>(row, 3)?.is_some() {
            match row::record(row, 3) {
                Ok(record) => records.push(Record { outcome: None, ..record }),
                // One that cannot be read must not hide the others from the recoverer.
                Err(error) => {
                    tracing::error!(%error, "an operation is left out of a listing: it cannot be read")
                }
            }
        }
    }
    Ok(Page { now, records, next: last.filter(|_| looked == limit) })
}

/// A filter, as `list.sql` takes it.
struct Wanted<'a> {
    states: Option<Vec<i16>>,
    namespace: Option<&'a str>,
    is_tenant: bool,
    tenant: Option<&'a str>,
    route: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(filter: &'a Filter) -> Self {
        let tenant = filter.tenant.as_ref().and_then(Option::as_deref);
        let (namespace, route) = (filter.namespace.as_deref(), filter.route.as_deref());
        // No record has a NUL in its names, and the server would not even take one to compare with.
        let impossible = [namespace, tenant, route].into_iter().flatten().any(|part| part.contains('\0'));
        if impossible {
            let (namespace, tenant, route, key) = Default::default();
            return Self { states: Some(Vec::new()), namespace, is_tenant: false, tenant, route, key };
        }
        let states = filter.states.as_ref();
        Self {
            states: states.map(|states| states.iter().map(|state| i16::from(*state as u8)).collect()),
            namespace,
            is_tenant: filter.tenant.is_some(),
            tenant,
            route,
            key: filter.key.as_ref().map(Key::as_str),
        }
    }

    fn params(&self) -> [Param<'_>; 6] {
        [
            (&self.states, Type::INT2_ARRAY),
            (&self.namespace, Type::TEXT),
            (&self.is_tenant, Type::BOOL),
            (&self.tenant, Type::TEXT),
            (&self.route, Type::TEXT),
            (&self.key, Type::TEXT),
        ]
    }
}

/// One transaction: all of this step's records become tombstones, or none.
pub(super) async fn purge_subject(
    shared: &Shared,
    subject: &str,
    nonce: Nonce,
    note: &str,
    limit: u32,
) -> Result<SubjectPurge, Error> {
    let mut link = shared.verbs.link().await?;
    let subject: [Param<'_>; 1] = [(&subject, Type::TEXT)];
    let (more, clock) = (i64::from(limit) + 1, shared.clock());
    let ended: [Param<'_>; 2] = [subject[0].clone(), (&more, Type::INT8)];
    let look: [Statement<'_>; 3] =
        [(sql::SUBJECT, &ended), (sql::SUBJECT_OPEN, &subject), (sql::MOMENT, &[(&clock, Type::INT8)])];
    transaction(&mut link, async |link| {
        let answers = link.live().run(shared.call_timeout, Some(&shared.begin), &look, End::Open).await?;
        let [ended, open, moment] = &answers[..] else { return Err(no_row().into()) };
        let now = row::time(moment.first().ok_or_else(no_row)?, 0)?;
        let open = get::<i64>(open.first().ok_or_else(no_row)?, 0)? as u64;
        let mut tombstones = Vec::with_capacity(ended.len());
        for row in ended.iter().take(limit as usize) {
            let record = row::record(row, 0)?;
            let purge = Purge { operation: record.operation.id(), nonce, note: note.to_owned() };
            tombstones.extend(purge.decide(Some(&record), Moment { now, fresh: Token(0) }).put);
        }
        let columns = Columns::of(&tombstones);
        let put = columns.put();
        link.live().run(shared.call_timeout, None, &[(sql::PUT, &put)], End::Commit(&[])).await?;
        let purged = tombstones.len() as u64;
        Ok(SubjectPurge { purged, open, more: ended.len() > limit as usize })
    })
    .await
}

pub(super) async fn status(shared: &Shared) -> Result<Status, Error> {
    let link = shared.chores.link_to_any().await?;
    let found = shared.connector.examine(link.live()).await?;
    let keys = read(shared, link, sql::HASH_KEYS, &[]).await?;
    let mut hash_keys = Vec::with_capacity(keys.len());
    for row in &keys {
        let secret: &[u8] = get(row, 1)?;
        let secret = secret.try_into().map_err(|_| {
            Error::new(Kind::Damaged, "a key of fingerprints is not 32 bytes long; restore semel_hash_key")
        })?;
        hash_keys.push(HashKey::new(get::<i32>(row, 0)? as u32, secret));
    }
    let went_back_from = shared.horizon.behind();
    Ok(Status { store_id: found.store_id, mark: found.mark, went_back_from, hash_keys })
}

pub(super) async fn acknowledge(shared: &Shared, by: &str) -> Result<Mark, Error> {
    let mut link = shared.chores.link_to_any().await?;
    let by = by.replace('\0', " ");
    let here = link.live().here(shared.call_timeout).await?;
    let (store_id, mark) = transaction(&mut link, async |link| {
        let look: [Statement<'_>; 2] = [(sql::HOLD_META, &[]), (sql::EXAMINE, &[])];
        let answers = link.live().run(shared.call_timeout, Some(&shared.begin), &look, End::Open).await?;
        let [_, state] = &answers[..] else { return Err(no_row().into()) };
        let found = connect::found(state.first().ok_or_else(no_row)?)?;
        let mark = found.mark.acknowledged(shared.horizon.seen().mark);
        let (epoch, token) = (number(mark.epoch)?, number(mark.token.0)?);
        let params: [Param<'_>; 4] =
            [(&epoch, Type::INT8), (&here, Type::TEXT), (&by, Type::TEXT), (&token, Type::INT8)];
        let accept = [(sql::ACKNOWLEDGE, &params[..])];
        link.live().run(shared.call_timeout, None, &accept, End::Commit(&[])).await?;
        Ok((found.store_id, mark))
    })
    .await?;
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
    let mut link = shared.chores.link().await?;
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| Error::new(Kind::Misconfigured, "no random bytes").because(error.to_string()))?;
    let secret = &secret[..];
    let rotate: [Statement<'_>; 2] = [(sql::HOLD_META, &[]), (sql::ROTATE, &[(&secret, Type::BYTEA)])];
    transaction(&mut link, async |link| {
        let answers =
            link.live().run(shared.call_timeout, Some(&shared.begin), &rotate, End::Commit(&[])).await?;
        let [_, added] = &answers[..] else { return Err(no_row().into()) };
        Ok(get::<i32>(added.first().ok_or_else(no_row)?, 0)? as u32)
    })
    .await
}

/// Runs a piece of work that begins and commits a transaction, and cleans up after one that failed.
pub(super) async fn transaction<T>(
    link: &mut Link<'_>,
    work: impl AsyncFnOnce(&mut Link<'_>) -> Result<T, Fault>,
) -> Result<T, Error> {
    link.busy();
    match work(link).await {
        Ok(done) => {
            link.done();
            Ok(done)
        }
        Err(fault) => {
            link.roll_back(&fault).await;
            Err(fault.error())
        }
    }
}

/// One statement that writes nothing.
async fn read(
    shared: &Shared,
    mut link: Link<'_>,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, Error> {
    link.busy();
    let rows = link.live().query(shared.call_timeout, sql, params).await;
    if !rows.as_ref().is_err_and(|fault| fault.broken) {
        link.done();
    }
    rows.map_err(|fault| fault.error())
}

fn number(number: u64) -> Result<i64, Error> {
    i64::try_from(number)
        .map_err(|_| Error::new(Kind::Damaged, "tokens have run out: the sequence is at its end"))
}

pub(super) fn no_row() -> Error {
    Error::new(Kind::Damaged, "PostgreSQL answered without a row where there is always one")
}
