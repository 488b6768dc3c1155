//! Housekeeping, and what a new outbox begins with.

use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::outbox::Tended;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Live, Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::{Desk, ring, sql};

/// Most delayed messages moved at once.
const DUE_MAX: i64 = 1000;

/// Makes the lanes of an outbox that was just created.
pub(in super::super) async fn create(live: &Live, limit: Duration, home: Option<&str>) -> Result<(), Fault> {
    live.query(limit, sql::CREATE, &[(&home, Type::TEXT)]).await.map(drop)
}

/// A step of everything.
///
/// # Cancellation
/// Safe. Each part is a transaction of its own.
pub(super) async fn tend(desk: &Desk) -> Result<Tended, Error> {
    let due = due(desk).await?;
    let removed = ring::rotate(desk).await?;
    ring::rotate_log(desk).await?;
    Ok(Tended { due, removed, more: due == DUE_MAX as u64 })
}

async fn due(desk: &Desk) -> Result<u64, Error> {
    let clock = desk.clock();
    let params: [Param<'_>; 2] = [(&clock, Type::INT8), (&DUE_MAX, Type::INT8)];
    let rows = desk.write(&desk.begin, &[(sql::DUE, &params)]).await?;
    let moved: i64 = get(rows.first().and_then(|rows| rows.first()).ok_or_else(no_row)?, 0)?;
    Ok(moved.max(0) as u64)
}

impl Desk {
    /// A transaction whole, on a connection for chores.
    pub(super) async fn write(
        &self,
        begin: &str,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Vec<Row>>, Error> {
        let mut link = self.chores.link_to_any().await?;
        transaction(&mut link, async |link| {
            link.live().run(self.call_timeout, Some(begin), statements, End::Commit(&[])).await
        })
        .await
    }
}

/// Somebody was in the way, which is no trouble: it is tried again another time.
pub(super) fn unless_busy<T: Default>(done: Result<T, Error>) -> Result<T, Error> {
    match done {
        Err(error) if error.kind() == Kind::Busy && !error.outcome_is_unknown() => Ok(T::default()),
        done => done,
    }
}
