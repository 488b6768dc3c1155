//! A record as a row, and back.
//!
//! Reading trusts nothing: a row that no Semel can have written is an error that names it, never a
//! record that is almost right.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use semel_core::clock::{Timestamp, micros};
use semel_core::fingerprint::{Paths, Print};
use semel_core::history::History;
use semel_core::record::{self, Record, Recovery, State, Terms};
use semel_core::{Key, Nonce, Operation, OperationId, Scope, Token, mutant};

use super::error::Fault;
use super::generations::Span;

/// The generation of what is left of old ones.
const LEFTOVERS: i64 = 0;

/// A row among many: its token, and its record if that can be read.
pub(super) type Found = (i64, Result<Record, Fault>);

/// The record of an operation, wherever it is.
pub(super) fn find(conn: &Connection, id: OperationId) -> Result<Option<Record>, Fault> {
    first(conn, include_str!("sql/find.sql"), [id.as_bytes().as_slice()])
}

/// The same, in this generation, the previous one if one is given, and among what is left of old ones.
pub(super) fn find_near(
    conn: &Connection,
    id: OperationId,
    newest: i64,
    previous: Option<i64>,
) -> Result<Option<Record>, Fault> {
    let leftovers = (!mutant::on("sqlite-leftovers-not-looked-into")).then_some(LEFTOVERS);
    let wanted = params![id.as_bytes().as_slice(), newest, previous, leftovers];
    first(conn, include_str!("sql/find_near.sql"), wanted)
}

/// The same, in this generation only.
pub(super) fn find_in(conn: &Connection, id: OperationId, generation: i64) -> Result<Option<Record>, Fault> {
    first(conn, include_str!("sql/find_in.sql"), params![id.as_bytes().as_slice(), generation])
}

/// How much is left of a generation, counted so far and no further.
pub(super) fn count_generation(conn: &Connection, generation: i64, most: i64) -> Result<i64, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/count_generation.sql"))?;
    Ok(statement.query_row([generation, most], |row| row.get(0))?)
}

fn first(conn: &Connection, sql: &str, wanted: impl Params) -> Result<Option<Record>, Fault> {
    conn.prepare_cached(sql)?.query_row(wanted, |row| Ok(read(row))).optional()?.transpose()
}

/// Writes what a verb decided in place of what was there.
pub(super) fn put(
    conn: &Connection,
    span: Span,
    current: Option<&Record>,
    record: &Record,
) -> Result<(), Fault> {
    let changed = match current {
        None => insert(conn, span, record)?,
        Some(old) if !is_same_attempt(old, record) => replace(conn, span, old, record)?,
        Some(old) if is_same_state(old, record) => keep(conn, record)?,
        Some(_) => shift(conn, record)?,
    };
    one_row(changed, record.operation.id())
}

/// What an update without an index to maintain must find unchanged.
fn is_same_attempt(old: &Record, new: &Record) -> bool {
    old.token == new.token
        && old.nonce == new.nonce
        && old.attempts == new.attempts
        && old.terms == new.terms
        && old.created_at == new.created_at
        && old.attempt_at == new.attempt_at
        && old.subject == new.subject
        && old.print.version == new.print.version
        && old.print.digest == new.print.digest
}

fn is_same_state(old: &Record, new: &Record) -> bool {
    old.state == new.state && old.settled_at == new.settled_at && old.outcome == new.outcome
}

fn insert(conn: &Connection, span: Span, record: &Record) -> Result<usize, Fault> {
    whole(conn, include_str!("sql/insert.sql"), record, Some(Place::of_new(span, record)?), None)
}

/// A new attempt has a new place; the same one keeps its own.
fn replace(conn: &Connection, span: Span, old: &Record, record: &Record) -> Result<usize, Fault> {
    let place = (old.token != record.token).then(|| Place::of_new(span, record)).transpose()?;
    whole(conn, include_str!("sql/replace.sql"), record, place, Some(old.token))
}

/// Where an attempt is in the indexes.
struct Place {
    /// When the sweeper looks at it.
    look: Timestamp,
    generation: i64,
}

impl Place {
    fn of_new(span: Span, record: &Record) -> Result<Self, Fault> {
        Ok(Self { look: record::first_look(record), generation: span.of(record.token)? })
    }
}

fn whole(
    conn: &Connection,
    sql: &str,
    record: &Record,
    place: Option<Place>,
    replaced: Option<Token>,
) -> Result<usize, Fault> {
    let Record { operation, terms, print, .. } = record;
    let (scope, id) = (operation.scope(), operation.id());
    let mut statement = conn.prepare_cached(sql)?;
    let values = params![
        signed(record.token)?,
        id.as_bytes().as_slice(),
        record.state as u8,
        record.attempts,
        terms.recovery as u8,
        micros(terms.lease),
        micros(terms.run_max),
        micros(terms.ttl),
        micros(terms.retry_window),
        record.created_at.as_micros(),
        record.attempt_at.as_micros(),
        record.lease_until.as_micros(),
        record.settled_at.map(Timestamp::as_micros),
        record.nonce.as_bytes().as_slice(),
        scope.namespace(),
        scope.tenant(),
        scope.route(),
        operation.key().as_str(),
        record.subject.as_deref(),
        print.version,
        print.digest.as_slice(),
        kept_paths(&print.paths),
        record.history.encode(),
        record.outcome.as_deref(),
        place.as_ref().map(|place| place.look.as_micros()),
        place.as_ref().map(|place| place.generation),
    ];
    match replaced {
        None => Ok(statement.execute(values)?),
        Some(token) => {
            let token = signed(token)?;
            Ok(statement.execute([values, params![token]].concat().as_slice())?)
        }
    }
}

fn shift(conn: &Connection, record: &Record) -> Result<usize, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/move.sql"))?;
    Ok(statement.execute(params![
        signed(record.token)?,
        record.state as u8,
        record.settled_at.map(Timestamp::as_micros),
        record.lease_until.as_micros(),
        kept_paths(&record.print.paths),
        record.history.encode(),
        record.outcome.as_deref(),
    ])?)
}

fn keep(conn: &Connection, record: &Record) -> Result<usize, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/keep.sql"))?;
    Ok(statement.execute(params![
        signed(record.token)?,
        record.lease_until.as_micros(),
        kept_paths(&record.print.paths),
        record.history.encode(),
    ])?)
}

/// The sweeper keeps a record and looks again at that time.
pub(super) fn look_again(conn: &Connection, token: i64, at: Timestamp) -> Result<(), Fault> {
    conn.prepare_cached(include_str!("sql/look_again.sql"))?.execute([token, at.as_micros()])?;
    Ok(())
}

/// Deletes an expired record.
pub(super) fn delete(conn: &Connection, record: &Record) -> Result<(), Fault> {
    let deleted = conn.prepare_cached(include_str!("sql/delete.sql"))?.execute([signed(record.token)?])?;
    one_row(deleted, record.operation.id())
}

fn one_row(changed: usize, id: OperationId) -> Result<(), Fault> {
    match changed {
        1 => Ok(()),
        other => {
            Err(Fault::damaged(format!("writing operation {id} changed {other} rows: an index is broken")))
        }
    }
}

/// Nothing is kept of paths that say nothing.
fn kept_paths(paths: &Paths) -> Option<&[u8]> {
    (*paths != Paths::default()).then(|| paths.encode())
}

/// A token as SQLite holds it.
pub(super) fn signed(token: Token) -> Result<i64, Fault> {
    i64::try_from(token.0)
        .map_err(|_| Fault::damaged(format!("token {token} is beyond what SQLite can count")))
}

/// A record from the columns every reading statement lists in the same order.
pub(super) fn read(row: &Row<'_>) -> Result<Record, Fault> {
    let token: i64 = row.get(0)?;
    decode(row, token).map_err(|what| Fault::damaged(format!("the record with token {token}: {what}")))
}

/// The same for statements that give many rows, of which one may be damaged.
pub(super) fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    Ok((row.get(0)?, read(row)))
}

fn decode(row: &Row<'_>, token: i64) -> Result<Record, String> {
    let id = OperationId::from_bytes(array(row, 1, "id")?);
    let operation = operation(row)?;
    if operation.id() != id {
        return Err("its id is not that of its namespace, tenant, route and key".into());
    }
    Ok(Record {
        operation: Arc::new(operation),
        state: State::from_byte(value(row, 2, "state")?).ok_or("its state does not exist")?,
        token: Token(u64::try_from(token).map_err(|_| "its token is negative")?),
        nonce: Nonce::from_bytes(array(row, 13, "nonce")?),
        print: print(row)?,
        terms: terms(row)?,
        attempts: value(row, 3, "attempts")?,
        created_at: time(row, 9, "created_at")?,
        attempt_at: time(row, 10, "attempt_at")?,
        lease_until: time(row, 11, "lease_until")?,
        settled_at: value::<Option<i64>>(row, 12, "settled_at")?.map(Timestamp::from_micros),
        subject: value(row, 18, "subject")?,
        outcome: value::<Option<Vec<u8>>>(row, 23, "outcome")?.map(Bytes::from),
        history: History::decode(blob(row, 22, "history")?).map_err(|error| error.to_string())?,
    })
}

fn operation(row: &Row<'_>) -> Result<Operation, String> {
    let (namespace, route) = (text(row, 14, "namespace")?, text(row, 16, "route")?);
    let scope = match value::<Option<String>>(row, 15, "tenant")? {
        Some(tenant) => Scope::new(namespace, &tenant, route),
        None => Scope::shared(namespace, route),
    };
    let key: Key = Key::from_stored(text(row, 17, "key")?).map_err(|error| error.to_string())?;
    Ok(Operation::new(scope.map_err(|error| error.to_string())?, key))
}

fn print(row: &Row<'_>) -> Result<Print, String> {
    let paths = match blob(row, 21, "print_paths")? {
        None => Paths::default(),
        Some(kept) => Paths::decode(kept).map_err(|error| error.to_string())?,
    };
    Ok(Print { version: value(row, 19, "print_version")?, digest: array(row, 20, "print_digest")?, paths })
}

fn terms(row: &Row<'_>) -> Result<Terms, String> {
    Ok(Terms {
        recovery: Recovery::from_byte(value(row, 4, "recovery")?).ok_or("its recovery does not exist")?,
        lease: span(row, 5, "lease")?,
        run_max: span(row, 6, "run_max")?,
        ttl: span(row, 7, "ttl")?,
        retry_window: span(row, 8, "retry_window")?,
    })
}

fn value<T: rusqlite::types::FromSql>(row: &Row<'_>, at: usize, name: &str) -> Result<T, String> {
    row.get(at).map_err(|error| format!("its {name} cannot be read ({error})"))
}

fn text<'a>(row: &'a Row<'_>, at: usize, name: &str) -> Result<&'a str, String> {
    let found = row.get_ref(at).map_err(|error| error.to_string())?;
    found.as_str().map_err(|error| format!("its {name} cannot be read ({error})"))
}

fn blob<'a>(row: &'a Row<'_>, at: usize, name: &str) -> Result<Option<&'a [u8]>, String> {
    let found = row.get_ref(at).map_err(|error| error.to_string())?;
    found.as_blob_or_null().map_err(|error| format!("its {name} cannot be read ({error})"))
}

fn array<const N: usize>(row: &Row<'_>, at: usize, name: &str) -> Result<[u8; N], String> {
    let bytes = blob(row, at, name)?.unwrap_or_default();
    bytes.try_into().map_err(|_| format!("its {name} has {} bytes instead of {N}", bytes.len()))
}

fn time(row: &Row<'_>, at: usize, name: &str) -> Result<Timestamp, String> {
    value(row, at, name).map(Timestamp::from_micros)
}

fn span(row: &Row<'_>, at: usize, name: &str) -> Result<Duration, String> {
    let micros: i64 = value(row, at, name)?;
    u64::try_from(micros).map(Duration::from_micros).map_err(|_| format!("its {name} is negative"))
}
