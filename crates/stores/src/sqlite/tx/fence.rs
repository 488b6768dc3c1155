//! Fences for resources: see [`semel_core::fence`].
//!
//! [`lease`] gives a token before the work begins, in a step of its own that is on disk when it is answered.
//! [`pass`] is called in the transaction of the write, before it: if it says refused, roll back.
//!
//! ```no_run
//! # fn refund(conn: &mut rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use rusqlite::TransactionBehavior::Immediate;
//! use semel_core::fence::Passage;
//! use semel_stores::sqlite::tx::fence;
//!
//! let order = "order/1042".parse()?;
//! let token = fence::lease(conn, &order)?;
//! // …the slow part: ask, decide…
//! let transaction = conn.transaction_with_behavior(Immediate)?;
//! match fence::pass(&transaction, &order, token)? {
//!     Passage::Passed => {
//!         transaction.execute("UPDATE orders SET status = 'refunded' WHERE id = 1042", [])?;
//!         transaction.commit()?;
//!     }
//!     // Dropping the transaction rolls back.
//!     Passage::Refused { last } => println!("{token} was overtaken by {last}"),
//! }
//! # Ok(())
//! # }
//! ```

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::error::{Error, Kind};
use semel_core::fence::{self, Passage, Resource, Token};
use semel_core::{Clock, SystemClock};

use super::{must_hold_write_lock, must_sync, tell};
use crate::sqlite::error::Fault;
use crate::sqlite::row;

/// The next token of a resource, larger than all it gave before. With no transaction open it is on disk when
/// this returns; inside one, it counts from the commit, and rolled back it was never given.
pub fn lease(conn: &Connection, resource: &Resource) -> Result<Token, Error> {
    must_sync(conn)?;
    let ask = || -> Result<i64, Fault> {
        let mut statement = conn.prepare_cached(include_str!("../sql/fence_lease.sql"))?;
        let mut rows = statement.query([resource.as_str()])?;
        let given = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.get(0)?;
        // To the end: with no transaction open, the last step is the commit, and it may fail.
        while rows.next()?.is_some() {}
        Ok(given)
    };
    ask().map(|given| Token(given.unsigned_abs())).map_err(|fault| tell(conn, &fault))
}

/// Asks, in the transaction of a write and before it, whether it may go on. Remembers the token with the
/// write: both commit, or neither does.
pub fn pass(transaction: &Connection, resource: &Resource, token: Token) -> Result<Passage, Error> {
    must_hold_write_lock(transaction)?;
    let answer = try_pass(transaction, resource, token).map_err(|fault| tell(transaction, &fault))?;
    answer.ok_or_else(|| {
        let text = format!(
            "{resource} has never given the token {token}; take it from lease({resource}), not from an operation \
             or another resource"
        );
        Error::new(Kind::Misconfigured, text)
    })
}

/// `None`: the resource has not given this token.
fn try_pass(conn: &Connection, resource: &Resource, token: Token) -> Result<Option<Passage>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("../sql/fence_look.sql"))?;
    let found = statement.query_row([resource.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
    let (given, last): (i64, i64) = found.optional()?.unwrap_or((0, 0));
    if token.0 == 0 || token > Token(given.unsigned_abs()) {
        return Ok(None);
    }
    let last = (last > 0).then(|| Token(last.unsigned_abs()));
    let passage = fence::pass(last, token);
    if passage == Passage::Passed {
        let mut statement = conn.prepare_cached(include_str!("../sql/fence_pass.sql"))?;
        let token = row::signed(semel_core::Token(token.0))?;
        statement.execute(params![resource.as_str(), token, SystemClock.now().as_micros()])?;
    }
    Ok(Some(passage))
}
