//! Records as rows, both ways. What cannot be read is damage, never a guess.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::clock::{Timestamp, micros};
use semel_core::error::{Error, Kind};
use semel_core::fingerprint::{Paths, Print};
use semel_core::history::History;
use semel_core::record::{self, Record, Recovery, State, Terms};
use semel_core::{Key, Nonce, Operation, OperationId, Scope, Token};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{Param, get};

/// A row of whichever driver, column by column.
pub(super) trait Cells {
    fn int2(&self, at: usize) -> Result<Option<i16>, Error>;
    fn int4(&self, at: usize) -> Result<Option<i32>, Error>;
    fn int8(&self, at: usize) -> Result<Option<i64>, Error>;
    fn bool(&self, at: usize) -> Result<Option<bool>, Error>;
    fn bytea(&self, at: usize) -> Result<Option<Cow<'_, [u8]>>, Error>;
    fn text(&self, at: usize) -> Result<Option<Cow<'_, str>>, Error>;
}

impl Cells for Row {
    fn int2(&self, at: usize) -> Result<Option<i16>, Error> {
        get(self, at)
    }

    fn int4(&self, at: usize) -> Result<Option<i32>, Error> {
        get(self, at)
    }

    fn int8(&self, at: usize) -> Result<Option<i64>, Error> {
        get(self, at)
    }

    fn bool(&self, at: usize) -> Result<Option<bool>, Error> {
        get(self, at)
    }

    fn bytea(&self, at: usize) -> Result<Option<Cow<'_, [u8]>>, Error> {
        Ok(get::<Option<&[u8]>>(self, at)?.map(Cow::Borrowed))
    }

    fn text(&self, at: usize) -> Result<Option<Cow<'_, str>>, Error> {
        Ok(get::<Option<&str>>(self, at)?.map(Cow::Borrowed))
    }
}

/// Reads a whole record whose columns start at `at`: identity first, then the rest.
pub(super) fn record(row: &impl Cells, at: usize) -> Result<Record, Error> {
    let operation = operation(row, at)?;
    rest(row, at + 5, Arc::new(operation))
}

/// Reads the id of a row, for finding whom it is for.
pub(super) fn id(row: &impl Cells, at: usize) -> Result<OperationId, Error> {
    Ok(OperationId::from_bytes(bytes(row, at, "id")?))
}

fn operation(row: &impl Cells, at: usize) -> Result<Operation, Error> {
    let id = id(row, at)?;
    let (namespace, route) = (there(row.text(at + 1)?, "namespace")?, there(row.text(at + 3)?, "route")?);
    let scope = match row.text(at + 2)? {
        Some(tenant) => Scope::new(&namespace, &tenant, &route),
        None => Scope::shared(&namespace, &route),
    };
    let scope = scope.map_err(|error| damaged("scope").because(error))?;
    let key = there(row.text(at + 4)?, "key")?;
    let key = Key::from_stored(&key).map_err(|error| damaged("key").because(error))?;
    let operation = Operation::new(scope, key);
    // The id is a digest of the names: if they disagree, one of them is wrong.
    if operation.id() == id { Ok(operation) } else { Err(damaged("id")) }
}

/// Reads all but the identity, from the column `state` on.
pub(super) fn rest(row: &impl Cells, at: usize, operation: Arc<Operation>) -> Result<Record, Error> {
    let byte = |at, column| Ok::<_, Error>(u8::try_from(there(row.int2(at)?, column)?).ok());
    let state = byte(at, "state")?.and_then(State::from_byte).ok_or_else(|| damaged("state"))?;
    let recovery = byte(at + 6, "recovery")?.and_then(Recovery::from_byte);
    let outcome = row.bytea(at + 17)?;
    let history = row.bytea(at + 18)?;
    if (state == State::Completed) != outcome.is_some() {
        return Err(damaged("outcome"));
    }
    let paths = there(row.bytea(at + 5)?, "fp_paths")?;
    Ok(Record {
        operation,
        state,
        token: Token(u64::try_from(there(row.int8(at + 1)?, "token")?).map_err(|_| damaged("token"))?),
        nonce: Nonce::from_bytes(bytes(row, at + 2, "nonce")?),
        print: Print {
            version: there(row.int4(at + 3)?, "fp_version")? as u32,
            digest: bytes(row, at + 4, "fp_digest")?,
            paths: Paths::decode(&paths).map_err(|error| damaged("fp_paths").because(error))?,
        },
        terms: Terms {
            recovery: recovery.ok_or_else(|| damaged("recovery"))?,
            lease: duration(row, at + 7)?,
            run_max: duration(row, at + 8)?,
            ttl: duration(row, at + 9)?,
            retry_window: duration(row, at + 10)?,
        },
        attempts: there(row.int4(at + 11)?, "attempts")? as u32,
        created_at: time(row, at + 12)?,
        attempt_at: time(row, at + 13)?,
        lease_until: time(row, at + 14)?,
        settled_at: row.int8(at + 15)?.map(Timestamp::from_micros),
        subject: row.text(at + 16)?.map(|subject| subject.into()),
        outcome: outcome.map(|outcome| match outcome {
            Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Cow::Owned(bytes) => bytes.into(),
        }),
        history: History::decode(history.as_deref()).map_err(|error| damaged("history").because(error))?,
    })
}

pub(super) fn time(row: &impl Cells, at: usize) -> Result<Timestamp, Error> {
    Ok(Timestamp::from_micros(there(row.int8(at)?, "time")?))
}

fn duration(row: &impl Cells, at: usize) -> Result<Duration, Error> {
    u64::try_from(there(row.int8(at)?, "terms")?).map(Duration::from_micros).map_err(|_| damaged("terms"))
}

fn bytes<const N: usize>(row: &impl Cells, at: usize, column: &str) -> Result<[u8; N], Error> {
    there(row.bytea(at)?, column)?[..].try_into().map_err(|_| damaged(column))
}

/// What a column that is never null holds.
pub(super) fn there<T>(cell: Option<T>, column: &str) -> Result<T, Error> {
    cell.ok_or_else(|| damaged(column))
}

fn damaged(column: &str) -> Error {
    Error::new(
        Kind::Damaged,
        format!("a row of semel_operation has an unreadable {column}; restore it from a backup"),
    )
}

/// Decided records, column by column, for `put.sql` and `insert.sql`.
pub(super) struct Columns<'a> {
    ids: Vec<Vec<u8>>,
    states: Vec<i16>,
    tokens: Vec<i64>,
    nonces: Vec<&'a [u8]>,
    fp_versions: Vec<i32>,
    fp_digests: Vec<&'a [u8]>,
    fp_paths: Vec<&'a [u8]>,
    recoveries: Vec<i16>,
    leases: Vec<i64>,
    run_maxes: Vec<i64>,
    ttls: Vec<i64>,
    windows: Vec<i64>,
    attempts: Vec<i32>,
    created_at: Vec<i64>,
    attempt_at: Vec<i64>,
    lease_until: Vec<i64>,
    settled_at: Vec<Option<i64>>,
    sweep_at: Vec<i64>,
    subjects: Vec<Option<&'a str>>,
    outcomes: Vec<Option<&'a [u8]>>,
    histories: Vec<Option<Vec<u8>>>,
    namespaces: Vec<&'a str>,
    tenants: Vec<Option<&'a str>>,
    routes: Vec<&'a str>,
    keys: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(records: &'a [Record]) -> Self {
        let scope = |r: &'a Record| r.operation.scope();
        Self {
            ids: column(records, |r| r.operation.id().as_bytes().to_vec()),
            states: column(records, |r| i16::from(r.state as u8)),
            tokens: column(records, |r| r.token.0 as i64),
            nonces: column(records, |r| &r.nonce.as_bytes()[..]),
            fp_versions: column(records, |r| r.print.version as i32),
            fp_digests: column(records, |r| &r.print.digest[..]),
            fp_paths: column(records, |r| r.print.paths.encode()),
            recoveries: column(records, |r| i16::from(r.terms.recovery as u8)),
            leases: column(records, |r| micros(r.terms.lease)),
            run_maxes: column(records, |r| micros(r.terms.run_max)),
            ttls: column(records, |r| micros(r.terms.ttl)),
            windows: column(records, |r| micros(r.terms.retry_window)),
            attempts: column(records, |r| r.attempts as i32),
            created_at: column(records, |r| r.created_at.as_micros()),
            attempt_at: column(records, |r| r.attempt_at.as_micros()),
            lease_until: column(records, |r| r.lease_until.as_micros()),
            settled_at: column(records, |r| r.settled_at.map(Timestamp::as_micros)),
            sweep_at: column(records, |r| record::first_look(r).as_micros()),
            subjects: column(records, |r| r.subject.as_deref()),
            outcomes: column(records, |r| r.outcome.as_deref()),
            histories: column(records, |r| r.history.encode()),
            namespaces: column(records, |r| scope(r).namespace()),
            tenants: column(records, |r| scope(r).tenant()),
            routes: column(records, |r| scope(r).route()),
            keys: column(records, |r| r.operation.key().as_str()),
        }
    }

    /// For writing over what is there.
    pub(super) fn put(&self) -> [Param<'_>; 21] {
        [
            (&self.ids, Type::BYTEA_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.nonces, Type::BYTEA_ARRAY),
            (&self.fp_versions, Type::INT4_ARRAY),
            (&self.fp_digests, Type::BYTEA_ARRAY),
            (&self.fp_paths, Type::BYTEA_ARRAY),
            (&self.recoveries, Type::INT2_ARRAY),
            (&self.leases, Type::INT8_ARRAY),
            (&self.run_maxes, Type::INT8_ARRAY),
            (&self.ttls, Type::INT8_ARRAY),
            (&self.windows, Type::INT8_ARRAY),
            (&self.attempts, Type::INT4_ARRAY),
            (&self.created_at, Type::INT8_ARRAY),
            (&self.attempt_at, Type::INT8_ARRAY),
            (&self.lease_until, Type::INT8_ARRAY),
            (&self.settled_at, Type::INT8_ARRAY),
            (&self.sweep_at, Type::INT8_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (&self.outcomes, Type::BYTEA_ARRAY),
            (&self.histories, Type::BYTEA_ARRAY),
        ]
    }

    /// For writing where nothing is: the identity too.
    pub(super) fn insert(&self) -> Vec<Param<'_>> {
        let identity: [Param<'_>; 4] = [
            (&self.namespaces, Type::TEXT_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.routes, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
        ];
        self.put().into_iter().chain(identity).collect()
    }
}

fn column<'a, T, R>(records: &'a [R], of: impl FnMut(&'a R) -> T) -> Vec<T> {
    records.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_starts_with_a_quote_comes_back_as_it_was() {
        for written in [r#""\"a\\b\"""#, r#""plain""#, r#"bare"#, r#""\\\"""#] {
            let parsed = Key::parse(written.as_bytes()).unwrap();
            assert_eq!(Key::from_stored(parsed.as_str()).unwrap(), parsed);
        }
    }
}
