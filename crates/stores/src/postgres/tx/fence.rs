//! Fences in the transaction of the write.
//!
//! [`lease`] before the work, [`pass`] in the transaction of every write to the resource. The row of the
//! resource stays locked until that transaction ends, so of two writers the later sees what the earlier did.
//! Nothing here is a lock for the time of the work: a slow holder goes on until it writes, and is refused then.

use semel_core::error::{Error, Kind};
use semel_core::fence::{self, Passage, Resource, Token};

use super::super::chores::no_row;
use super::super::row::{Cells, there};
use super::super::sql;
use super::Connection;
use super::value::Value;

/// Takes a token for a resource, larger than all before. Anybody can at any time: what counts is who writes.
///
/// Take it in a transaction of its own, before the work. The counter does not roll back.
///
/// # Cancellation
/// Safe. A token that nobody uses does no harm.
pub async fn lease(mut connection: impl Connection, resource: &Resource) -> Result<Token, Error> {
    let rows = connection.ask(sql::FENCE_LEASE, &[Value::Text(Some(resource.as_str()))]).await;
    let rows = rows.map_err(|fault| fault.error())?;
    let token = there(rows.first().ok_or_else(no_row)?.int8(0)?, "token")?;
    Ok(Token(token as u64))
}

/// Passes the fence of a resource in the transaction that writes to it, before the write. Refuses a token that
/// is smaller than the last one that wrote, and fails for one that no lease gave. After a crash right after it: nothing, the transaction is gone.
///
/// # Cancellation
/// The statement may or may not have run: roll the transaction back.
pub async fn pass(
    mut transaction: impl Connection,
    resource: &Resource,
    token: Token,
) -> Result<Passage, Error> {
    // What no counter of the database can reach was never given.
    let number = i64::try_from(token.0).unwrap_or(i64::MAX);
    let values = [Value::Text(Some(resource.as_str())), Value::Int8(Some(number))];
    let rows = transaction.ask(sql::FENCE_LOOK, &values).await.map_err(|fault| fault.error())?;
    let row = rows.first().ok_or_else(no_row)?;
    let last = row.int8(0)?.map(|last| Token(last as u64));
    let newest = Token(there(row.int8(1)?, "newest")? as u64);
    if token > newest {
        let sentence = format!(
            "no lease gave the token {token} for {resource}: the newest is {newest}. It comes from elsewhere, or the \
             database was restored from an older state"
        );
        return Err(Error::new(Kind::Misconfigured, sentence));
    }
    Ok(fence::pass(last, token))
}
