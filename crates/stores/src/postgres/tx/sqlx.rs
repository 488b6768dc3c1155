//! Transactions of sqlx.
//!
//! sqlx asks the server about a statement before it binds values to it: two round trips, unless the
//! statement is cached under a name, which a pooler in transaction mode may not keep. So the values are written into
//! the statement, as digits.

use std::borrow::Cow;

use semel_core::error::{Error, Kind};
use sqlx::postgres::{PgRow, PgSeverity};
use sqlx::{AssertSqlSafe, Decode, Executor, PgConnection, Postgres, Row, Transaction, Type};

use super::super::fault::Fault;
use super::super::row::Cells;
use super::driver::{Ends, Speaks};
use super::value::{Value, inline};

impl Speaks for &mut PgConnection {
    type Row = PgRow;

    async fn ask(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<PgRow>, Fault> {
        let text = sqlx::raw_sql(AssertSqlSafe(inline(sql, values)));
        text.fetch_all(&mut **self).await.map_err(|error| fault(&error))
    }

    async fn tell(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Option<String>, Fault> {
        let rows = self.ask(sql, values).await?;
        let Some(row) = rows.last() else { return Ok(None) };
        let committed = row.bool(row.len().saturating_sub(1))?;
        Ok(committed.map(|committed| if committed { "t" } else { "f" }.to_owned()))
    }
}

impl Ends for Transaction<'_, Postgres> {
    async fn end(mut self, sql: &str) -> Result<(), Fault> {
        // sqlx does not know that it is over, and sends a ROLLBACK when it is dropped, which nobody waits for. The
        // empty transaction is there to be rolled back: without it the server would log a warning each time.
        let sql = format!("{sql}; BEGIN");
        (*self).execute(AssertSqlSafe(sql)).await.map(drop).map_err(|error| {
            let mut fault = fault(&error);
            // Such an error may have come after the COMMIT, of the BEGIN: somebody must look.
            fault.broken |= !is_before_commit(&error);
            fault
        })
    }
}

/// Whether an error can only have come before the COMMIT took effect: of the check, of an error that was
/// ignored, of a constraint, or of a conflict. A cancellation, among others, can come after it.
fn is_before_commit(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let code = error.code();
    let code = code.as_deref().unwrap_or_default();
    matches!(code, "SM001" | "25P02") || code.starts_with("23") || code.starts_with("40")
}

fn fault(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Database(error) => match error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
            Some(error) => {
                Fault::said(error.code(), error.message(), !matches!(error.severity(), PgSeverity::Error))
            }
            None => Fault::cut(error.to_string()),
        },
        error => Fault::cut(error.to_string()),
    }
}

fn cell<'r, T: Decode<'r, Postgres> + Type<Postgres>>(row: &'r PgRow, at: usize) -> Result<Option<T>, Error> {
    row.try_get(at).map_err(|error| {
        Error::new(Kind::Damaged, "the PostgreSQL store holds something that cannot be read")
            .because(error.to_string())
    })
}

impl Cells for PgRow {
    fn int2(&self, at: usize) -> Result<Option<i16>, Error> {
        cell(self, at)
    }

    fn int4(&self, at: usize) -> Result<Option<i32>, Error> {
        cell(self, at)
    }

    fn int8(&self, at: usize) -> Result<Option<i64>, Error> {
        cell(self, at)
    }

    fn bool(&self, at: usize) -> Result<Option<bool>, Error> {
        cell(self, at)
    }

    fn bytea(&self, at: usize) -> Result<Option<Cow<'_, [u8]>>, Error> {
        Ok(cell::<Vec<u8>>(self, at)?.map(Cow::Owned))
    }

    fn text(&self, at: usize) -> Result<Option<Cow<'_, str>>, Error> {
        Ok(cell::<&str>(self, at)?.map(Cow::Borrowed))
    }
}
