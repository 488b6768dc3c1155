//! Records as rows, both ways. What cannot be read is damage, never a guess.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mysql_async::{Row, Value};
use semel_core::clock::{Timestamp, micros};
use semel_core::error::{Error, Kind};
use semel_core::fingerprint::{Paths, Print};
use semel_core::history::History;
use semel_core::record::{self, Record, Recovery, State, Terms};
use semel_core::{Key, Nonce, Operation, OperationId, Scope, Token};

/// Columns of a record, as every statement that reads one names them.
pub(super) const COLUMNS: usize = 24;

/// Reads a whole record.
pub(super) fn record(row: &Row) -> Result<Record, Error> {
    let operation = operation(row)?;
    rest(row, Arc::new(operation))
}

/// Reads the id of a row, for finding whom it is for.
pub(super) fn id(row: &Row) -> Result<OperationId, Error> {
    Ok(OperationId::from_bytes(array(row, 0, "id")?))
}

/// Reads the nonce of a row.
pub(super) fn nonce(row: &Row) -> Result<Nonce, Error> {
    Ok(Nonce::from_bytes(array(row, 7, "nonce")?))
}

fn operation(row: &Row) -> Result<Operation, Error> {
    let id = id(row)?;
    let part = |at, name| text(row, at)?.ok_or_else(|| damaged(name));
    let (namespace, route) = (part(1, "namespace")?, part(3, "route")?);
    let scope = match text(row, 2)? {
        Some(tenant) => Scope::new(namespace, tenant, route),
        None => Scope::shared(namespace, route),
    };
    let scope = scope.map_err(|error| damaged("scope").because(error))?;
    let key = Key::from_stored(part(4, "key")?).map_err(|error| damaged("key").because(error))?;
    let operation = Operation::new(scope, key);
    // The id is a digest of the names: if they disagree, one of them is wrong.
    if operation.id() == id { Ok(operation) } else { Err(damaged("id")) }
}

/// Reads all but the identity.
pub(super) fn rest(row: &Row, operation: Arc<Operation>) -> Result<Record, Error> {
    let state = u8::try_from(int(row, 5)?).ok().and_then(State::from_byte);
    let recovery = u8::try_from(int(row, 11)?).ok().and_then(Recovery::from_byte);
    let (outcome, history) = (maybe_bytes(row, 22)?, maybe_bytes(row, 23)?);
    let state = state.ok_or_else(|| damaged("state"))?;
    if (state == State::Completed) != outcome.is_some() {
        return Err(damaged("outcome"));
    }
    Ok(Record {
        operation,
        state,
        token: Token(u64::try_from(int(row, 6)?).map_err(|_| damaged("token"))?),
        nonce: nonce(row)?,
        print: Print {
            version: small(row, 8, "fp_version")?,
            digest: array(row, 9, "fp_digest")?,
            paths: Paths::decode(bytes(row, 10)?).map_err(|error| damaged("fp_paths").because(error))?,
        },
        terms: Terms {
            recovery: recovery.ok_or_else(|| damaged("recovery"))?,
            lease: duration(row, 12)?,
            run_max: duration(row, 13)?,
            ttl: duration(row, 14)?,
            retry_window: duration(row, 15)?,
        },
        attempts: small(row, 16, "attempts")?,
        created_at: time(row, 17)?,
        attempt_at: time(row, 18)?,
        lease_until: time(row, 19)?,
        settled_at: maybe_int(row, 20)?.map(Timestamp::from_micros),
        subject: text(row, 21)?.map(Into::into),
        outcome: outcome.map(Bytes::copy_from_slice),
        history: History::decode(history).map_err(|error| damaged("history").because(error))?,
    })
}

pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp, Error> {
    Ok(Timestamp::from_micros(int(row, at)?))
}

fn duration(row: &Row, at: usize) -> Result<Duration, Error> {
    u64::try_from(int(row, at)?).map(Duration::from_micros).map_err(|_| damaged("terms"))
}

fn small(row: &Row, at: usize, column: &str) -> Result<u32, Error> {
    u32::try_from(int(row, at)?).map_err(|_| damaged(column))
}

fn array<const N: usize>(row: &Row, at: usize, column: &str) -> Result<[u8; N], Error> {
    bytes(row, at)?.try_into().map_err(|_| damaged(column))
}

/// A number, however it came: bound statements bring numbers, plain ones their digits.
pub(super) fn int(row: &Row, at: usize) -> Result<i64, Error> {
    maybe_int(row, at)?.ok_or_else(unreadable)
}

pub(super) fn maybe_int(row: &Row, at: usize) -> Result<Option<i64>, Error> {
    match value(row, at)? {
        Value::NULL => Ok(None),
        Value::Int(number) => Ok(Some(*number)),
        Value::UInt(number) => i64::try_from(*number).map(Some).map_err(|_| unreadable()),
        Value::Bytes(digits) => {
            let digits = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            digits.map(Some).ok_or_else(unreadable)
        }
        _ => Err(unreadable()),
    }
}

pub(super) fn bytes(row: &Row, at: usize) -> Result<&[u8], Error> {
    maybe_bytes(row, at)?.ok_or_else(unreadable)
}

pub(super) fn maybe_bytes(row: &Row, at: usize) -> Result<Option<&[u8]>, Error> {
    match value(row, at)? {
        Value::NULL => Ok(None),
        Value::Bytes(bytes) => Ok(Some(bytes)),
        _ => Err(unreadable()),
    }
}

pub(super) fn text(row: &Row, at: usize) -> Result<Option<&str>, Error> {
    let text = maybe_bytes(row, at)?.map(std::str::from_utf8);
    text.transpose().map_err(|error| unreadable().because(error))
}

fn value(row: &Row, at: usize) -> Result<&Value, Error> {
    row.as_ref(at).ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::new(Kind::Damaged, "the MySQL store holds something that cannot be read")
}

fn damaged(column: &str) -> Error {
    Error::new(
        Kind::Damaged,
        format!("a row of semel_operation has an unreadable {column}; restore it from a backup"),
    )
}

/// The values of a record, in the order of `claim.sql` and `put.sql`.
pub(super) fn values(record: &Record, out: &mut Vec<Value>) {
    let scope = record.operation.scope();
    let (print, terms) = (&record.print, &record.terms);
    out.extend([
        key(record.operation.id()),
        scope.namespace().into(),
        scope.tenant().into(),
        scope.route().into(),
        record.operation.key().as_str().into(),
        (record.state as u8).into(),
        (record.token.0 as i64).into(),
        record.nonce.as_bytes()[..].into(),
        print.version.into(),
        print.digest[..].into(),
        print.paths.encode()[..].into(),
        (terms.recovery as u8).into(),
        micros(terms.lease).into(),
        micros(terms.run_max).into(),
        micros(terms.ttl).into(),
        micros(terms.retry_window).into(),
        record.attempts.into(),
        record.created_at.as_micros().into(),
        record.attempt_at.as_micros().into(),
        record.lease_until.as_micros().into(),
        record.settled_at.map(Timestamp::as_micros).into(),
        record.subject.as_deref().into(),
        record.outcome.as_deref().into(),
        record.history.encode().into(),
        record::first_look(record).as_micros().into(),
    ]);
}

/// An id as it is bound.
pub(super) fn key(id: OperationId) -> Value {
    id.as_bytes()[..].into()
}
