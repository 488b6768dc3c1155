//! Fences for resources: see [`semel_core::fence`].
//!
//! [`lease`] before the work, [`pass`] in the transaction of every write to the resource. The row of the resource
//! stays locked until that transaction ends, so of two writers the later sees what the earlier did. Nothing here is
//! a lock for the time of the work: a slow holder goes on until it writes, and is refused then.

use mysql_async::prelude::Queryable;
use semel_core::error::{Error, Kind};
use semel_core::fence::{self, Passage, Resource, Token};

use super::super::chores::no_row;
use super::super::say::tell;
use super::super::{row, sql};
use super::told;

/// The statement of `fence_lease.sql` that gives a row.
const GIVEN: usize = 2;

/// The next token of a resource, larger than all it gave before: one round trip. The number is not given again,
/// whatever becomes of a transaction around this.
///
/// Take it with no transaction open and with `autocommit` on: it is on disk when this returns. Inside a transaction it
/// counts from the commit, and until then others who lease the same resource wait.
///
/// # Cancellation
/// Safe. A token that nobody uses does no harm.
pub async fn lease(client: &mut impl Queryable, resource: &Resource) -> Result<Token, Error> {
    let said = tell(client, &sql::fence_lease(), &[resource.as_str().into()]).await.map_err(told)?;
    Ok(Token(row::int(said.row(GIVEN).ok_or_else(no_row)?, 0)? as u64))
}

/// Passes the fence of a resource in the transaction that writes to it, before the write: one round trip. Refuses
/// a token that is smaller than the last one that wrote, and fails for one that the resource has not given, and
/// where no transaction is open. After a crash right after it: nothing, the transaction is gone.
///
/// # Cancellation
/// The statement may or may not have run: roll the transaction back.
pub async fn pass(
    transaction: &mut impl Queryable,
    resource: &Resource,
    token: Token,
) -> Result<Passage, Error> {
    let name = || resource.as_str().into();
    // What no counter of the database can reach was never given.
    let number = i64::try_from(token.0).unwrap_or(i64::MAX);
    let values = [name(), number.into(), name(), number.into(), number.into()];
    let said = tell(transaction, &sql::fence_pass(), &values).await.map_err(told)?;
    let (given, last) = match said.row(2) {
        Some(found) => (row::int(found, 0)? as u64, row::int(found, 1)? as u64),
        None => (0, 0),
    };
    if token.0 == 0 || token > Token(given) {
        let text = format!(
            "{resource} has never given the token {token}; take it from lease({resource}), not from an operation or \
             another resource"
        );
        return Err(Error::new(Kind::Misconfigured, text));
    }
    Ok(fence::pass((last > 0).then_some(Token(last)), token))
}
