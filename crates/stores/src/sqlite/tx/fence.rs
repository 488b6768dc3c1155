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

use std::borrow::Cow;

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::error::{Error, Kind};
use semel_core::fence::{self, Passage, Resource, Token};
use semel_core::{Clock, SystemClock, mutant};

use super::{is_sound, must_hold_write_lock, must_sync, tell, went_back, witness_beside};
use crate::sqlite::error::Fault;
use crate::sqlite::{reader, row};

const LEASE: &str = include_str!("../sql/fence_lease.sql");

/// The next token of a resource, larger than all it gave before. With no transaction open it is on disk when
/// this returns; inside one, it counts from the commit, and rolled back it was never given. Fails on a database behind
/// the witness beside it, until an operator has acknowledged the restore.
pub fn lease(conn: &Connection, resource: &Resource) -> Result<Token, Error> {
    must_sync(conn)?;
    // Before its first write a transaction may read an older state than the witness knows of.
    let is_inside = !conn.is_autocommit();
    if !is_inside {
        must_not_be_behind(conn)?;
    }
    let token = give(conn, resource).map_err(|fault| tell(conn, &fault))?;
    if is_inside {
        must_not_be_behind(conn)?;
    }
    Ok(token)
}

fn give(conn: &Connection, resource: &Resource) -> Result<Token, Fault> {
    let sql = match mutant::on("sqlite-fence-restarts") {
        true => LEASE.replace("<< 40", "* 0").into(),
        false => Cow::Borrowed(LEASE),
    };
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([resource.as_str()])?;
    let given: i64 = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.get(0)?;
    // To the end: with no transaction open, the last step is the commit, and it may fail.
    while rows.next()?.is_some() {}
    Ok(Token(given.unsigned_abs()))
}

/// Asks, in the transaction of a write and before it, whether it may go on. Remembers the token with the
/// write: both commit, or neither does. Fails on a database behind the witness beside it, as [`lease`] does.
pub fn pass(transaction: &Connection, resource: &Resource, token: Token) -> Result<Passage, Error> {
    must_hold_write_lock(transaction)?;
    must_not_be_behind(transaction)?;
    let answer = try_pass(transaction, resource, token).map_err(|fault| tell(transaction, &fault))?;
    answer.ok_or_else(|| {
        let text = format!(
            "{resource} has never given the token {token}; take it from lease({resource}), not from an operation \
             or another resource"
        );
        Error::new(Kind::Misconfigured, text)
    })
}

/// A database that was set back would give tokens again that somebody holds, and has forgotten who wrote.
fn must_not_be_behind(conn: &Connection) -> Result<(), Error> {
    let witness = witness_beside(conn)?;
    let store = reader::describe(conn).map_err(|fault| tell(conn, &fault))?;
    match is_sound(&store, witness) || mutant::on("sqlite-fence-in-restored-file") {
        true => Ok(()),
        false => Err(went_back()),
    }
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
