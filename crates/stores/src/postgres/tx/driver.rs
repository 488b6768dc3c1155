//! What is asked of a driver: one statement in one round trip, several in one message.

use std::future::Future;

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row, SimpleQueryMessage, Transaction};

use super::super::connect::Param;
use super::super::fault::Fault;
use super::super::row::Cells;
use super::value::{Value, inline};

/// A connection that statements can be sent on.
pub(super) trait Speaks: Send {
    type Row: Cells + Send;

    /// One statement, one round trip.
    fn ask(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, Fault>> + Send;

    /// Several statements in one message; the last column of the last row, as text.
    fn tell(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Option<String>, Fault>> + Send;
}

/// A transaction that can end.
pub(super) trait Ends: Send {
    /// Sends the statements that end it, in one message.
    fn end(self, sql: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

impl<C: GenericClient + Sync> Speaks for &C {
    type Row = Row;

    async fn ask(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        let params: Vec<Param<'_>> =
            values.iter().map(|value| (value as &(dyn ToSql + Sync), value.kind())).collect();
        // Typed, so that the driver need not ask what the parameters are; unnamed, for poolers.
        self.query_typed(sql, &params).await.map_err(|error| Fault::of(&error))
    }

    async fn tell(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Option<String>, Fault> {
        let told = self.simple_query(&inline(sql, values)).await.map_err(|error| Fault::of(&error))?;
        let rows = told.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.last().and_then(|row| row.get(row.len().checked_sub(1)?).map(str::to_owned)))
    }
}

impl Ends for Transaction<'_> {
    async fn end(self, sql: &str) -> Result<(), Fault> {
        self.batch_execute(sql).await.map_err(|error| Fault::of(&error))?;
        // It is over, and a ROLLBACK after it would be one message too many.
        std::mem::forget(self);
        Ok(())
    }
}
