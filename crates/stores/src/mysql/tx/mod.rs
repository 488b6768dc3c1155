//! Claim, effect, messages and outcome in one transaction of the caller.
//!
//! The caller opens a transaction on the database that holds the store's tables, with mysql_async. [`begin`] says
//! whether to run; then come the caller's own statements; [`finish`] writes the outcome and the messages; the
//! caller commits, best with [`commit`]. Before the commit nobody sees any of it, after it everything, so a crash
//! anywhere leaves all or nothing.
//!
//! A duplicate that comes meanwhile is told so at once: the operation's lock is asked for and never waited for.
//! The lock is one of [`SLOTS`] rows, so of two different operations that are open at the same time the second is
//! told "in flight" if their ids begin with the same 14 bits. With 32 transactions open that meets one in five
//! hundred; it is retried like any other refusal, and nothing has happened.
//!
//! Nothing here opens a transaction but [`resolve`], which is for another connection, and nothing calls anybody
//! but the database. A call to another service inside the transaction is the caller's mistake: it is not undone
//! when the transaction is.
//!
//! ```no_run
//! # async fn pay(conn: &mut mysql_async::Conn, other: &mut mysql_async::Conn,
//! #              call: &semel_core::joined::Call) -> Result<(), Box<dyn std::error::Error>> {
//! use mysql_async::TxOpts;
//! use mysql_async::prelude::Queryable;
//! use semel_core::Outcome;
//! use semel_stores::mysql::tx::{self, Begun};
//!
//! let mut transaction = conn.start_transaction(TxOpts::default()).await?;
//! let running = match tx::begin(&mut transaction, call).await? {
//!     Begun::Run(running) => running,
//!     Begun::Replay(outcome) => {
//!         transaction.rollback().await?; // lets go of the locks
//!         return Ok(println!("it has happened: {:?}", outcome.body_bytes()));
//!     }
//!     Begun::Refused(why) => {
//!         transaction.rollback().await?;
//!         return Err(why.into());
//!     }
//! };
//! transaction.query_drop("UPDATE account SET cents = cents - 2000 WHERE name = 'alice'").await?;
//! let finished = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await?;
//! let resolve = async |lost| tx::resolve(other, lost, tx::PATIENCE).await;
//! let _committed = tx::commit(transaction, finished, resolve).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Round trips
//! [`begin`] is one and [`finish`] is one, whatever the number of messages, up to [`TEXT_BYTES_MAX`]; beyond that
//! messages and outcome go in bound statements. Taking over what lapsed or was released is one more. [`commit`] is the
//! caller's own COMMIT, and one more only if the caller has used the connection since `finish`.
//!
//! # Isolation
//! Any level will do. The record is read under locks, and so as it is now, however old the transaction's snapshot is.
//! A MariaDB with `innodb_snapshot_isolation` refuses that instead: [`begin`] then fails with a
//! [retryable](Error::is_retryable) error, and the transaction is to be tried again.
//!
//! # Errors
//! MySQL undoes the whole transaction when it loses a deadlock, and only the statement after any other error.
//! Either way: roll back and begin again. [`finish`] and [`commit`] look whether what was begun and finished is
//! still there, so an ignored error cannot pass for a success. A statement that commits by itself (DDL) ends the
//! transaction early: `finish` then fails, and what is there is a claim that lapses.
//!
//! What they cannot undo is what came after the deadlock: with `autocommit` on, MySQL's default, each of those
//! statements was committed by itself. Their errors therefore say that the [outcome is
//! unknown](Error::outcome_is_unknown), and are not retryable. On a connection that is made with
//! `SET SESSION autocommit = 0` nothing is committed without a COMMIT, and the rollback undoes those statements, too.
//! Nothing here changes that setting: whoever rolls back would be left with it.
//!
//! The driver rolls back a dropped transaction only when its connection is used next, and until then the locks of
//! [`begin`] are held. So also after [`Begun::Replay`], [`Begun::Refused`] and errors: `rollback().await`.
//!
//! The record of the running attempt is in the transaction from the beginning. A claim outside any transaction, by a
//! gateway say, waits for it until the transaction ends or the server's patience with locks does.
//!
//! # Savepoints
//! Effect and [`finish`] belong at the same level: what is rolled back must take the other with it. A rollback to a
//! savepoint before [`begin`] undoes the beginning; `finish` then fails. MySQL does not say how deep a connection
//! is in savepoints, so nothing here can check the rest.

pub mod fence;

use std::future::Future;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Transaction, Value};
use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::joined::{self, Call, Committed};
use semel_core::record::{Moment, Record};
use semel_core::{
    Message, Nonce, Operation, OperationId, Outcome, Refusal, Timestamp, Token, attempt, mutant,
};

use super::chores::no_row;
use super::fault::{Again, Fault};
use super::outbox::{enqueue, statements};
use super::say::{bind, inline, say, tell};
use super::{row, sql};
use crate::crash;

/// How long [`resolve`] is good to wait for a transaction whose end nobody saw.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a message to the server that carries messages and outcome together. Far less than any server's
/// `max_allowed_packet`.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// How many locks operations share.
pub const SLOTS: u16 = 1 << 14;

/// What came of beginning.
#[derive(Debug)]
pub enum Begun {
    /// Run the effect, finish, commit.
    Run(Box<Running>),
    /// It has happened; this is the stored outcome. There is nothing to commit: roll back.
    Replay(Outcome),
    /// Do not run. There is nothing to commit: roll back.
    Refused(Refusal),
}

/// An attempt that lives in the caller's transaction. Rolled back with it, nothing has happened. Committed without
/// being finished, it is a claim that lapses.
#[derive(Debug)]
pub struct Running {
    work: joined::Work,
    call: Call,
}

impl Running {
    /// The operation it is an attempt at.
    pub fn operation(&self) -> &Operation {
        self.work.operation()
    }

    /// The attempt's token.
    pub fn token(&self) -> Token {
        self.work.holder().token
    }

    /// Which attempt at the operation this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.work.attempt()
    }

    /// A key for what follows from the effect: the same on every attempt, different for every step and `n`.
    pub fn derive(&self, step: &str, n: u32) -> String {
        attempt::derive(self.operation().id(), step, n)
    }
}

/// An attempt whose outcome is written and waits for the commit.
#[must_use = "nothing has happened before the commit"]
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    operation: OperationId,
    nonce: Nonce,
}

impl Finished {
    /// The number that stays behind on the connection: no two attempts have the same, and no counter reaches it soon.
    fn mark(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.nonce.as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 | 1
    }
}

/// What became of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Everything happened, and every retry is told so.
    Committed,
    /// Nothing happened, and nothing of it can happen any more.
    NotCommitted,
}

/// The statements of `tx_begin.sql` that give rows.
const SLOT: usize = 3;
const RECORD: usize = 6;

/// Those of `tx_resolve.sql`.
const FREE: usize = 1;
const LANDED: usize = 4;

/// Asks whether to run, in the caller's transaction: one round trip. Takes the operation's lock until it ends, or says
/// that another attempt is running. Writes down that this one is.
///
/// On an error roll the transaction back. `LAST_INSERT_ID()` of the session is not what it was.
///
/// # Cancellation
/// Dropped, the lock may be held until the transaction ends: roll it back.
pub async fn begin(transaction: &mut impl Queryable, call: &Call) -> Result<Begun, Error> {
    call.check()?;
    let said = match say(transaction, &beginning(&call.request())).await {
        Ok(said) => said,
        Err(fault) if fault.again == Again::Waited => return busy(transaction, call).await,
        Err(fault) => return Err(fault.error()),
    };
    if said.row(SLOT).is_none() {
        return Err(seedless());
    }
    let found = said.row(RECORD).ok_or_else(no_row)?;
    let fresh = Token(row::int(found, row::COLUMNS)? as u64);
    let at = Moment { now: row::time(found, row::COLUMNS + 1)?, fresh };
    let begun = decide(transaction, call, row::record(found)?, at).await?;
    crash::point("my-tx-begun");
    Ok(match begun {
        joined::Begun::Run(work) => Begun::Run(Box::new(Running { work: *work, call: call.clone() })),
        joined::Begun::Told(claim) => call.told(claim).map_or_else(Begun::Refused, Begun::Replay),
    })
}

/// Somebody else has a lock. That is a refusal if the transaction is still what it was; a server with
/// `innodb_rollback_on_timeout` has rolled all of it back, and that is an error.
async fn busy(transaction: &mut impl Queryable, call: &Call) -> Result<Begun, Error> {
    match say(transaction, sql::TX_STILL).await {
        Ok(_) => {
            let now = Timestamp::from_micros(0);
            let told = call.told(Claim::InFlight { since: now, until: now });
            Ok(told.map_or_else(Begun::Refused, Begun::Replay))
        }
        Err(fault) if fault.transaction_gone => {
            let text = "somebody holds a lock, and MySQL rolled the whole transaction back for it \
                        (innodb_rollback_on_timeout is on); roll back, and try all of it again";
            Err(Error::new(Kind::Busy, text))
        }
        Err(fault) => Err(fault.error()),
    }
}

/// The text that claims where nothing is, with times counted from the moment it runs.
fn beginning(request: &Request) -> String {
    let id = request.operation.id();
    let mut values = vec![slot(id).into()];
    let origin = Moment { now: Timestamp::from_micros(0), fresh: Token(0) };
    if let joined::Begun::Run(work) = joined::begin(request, None, origin) {
        row::values(work.in_progress(), &mut values);
    }
    values.push(row::key(id));
    inline(&sql::tx_begin(), &values)
}

/// Decides about the record that is there and held: the one just made, or another.
async fn decide(
    transaction: &mut impl Queryable,
    call: &Call,
    current: Record,
    at: Moment,
) -> Result<joined::Begun, Error> {
    let request = call.request();
    if current.token == at.fresh && current.nonce == request.nonce {
        return Ok(joined::begin(&request, None, Moment { now: current.attempt_at, ..at }));
    }
    let mut begun = joined::begin(&request, Some(&current), at);
    if let joined::Begun::Told(Claim::OtherVersion { version }) = begun
        && let Some(request) = call.request_under(version)
    {
        begun = joined::begin(&request, Some(&current), at);
    }
    if let joined::Begun::Run(work) = &begun {
        let mut values = Vec::new();
        row::values(work.in_progress(), &mut values);
        tell(transaction, &sql::each(sql::PUT, 1), &values).await.map_err(told)?;
    }
    Ok(begun)
}

/// Writes the outcome and the messages into the transaction: one round trip. Whatever the outcome says, it is what
/// every retry will get.
///
/// On an error roll the transaction back: the attempt was not begun in it, a message could not be published, or the
/// database failed. If the transaction had ended before, statements since may have been committed by themselves, and
/// the error says that the [outcome is unknown](Error::outcome_is_unknown). `LAST_INSERT_ID()` of the session is not
/// what it was.
///
/// # Cancellation
/// Dropped, the outcome may be written; the transaction must be rolled back.
pub async fn finish(
    transaction: &mut impl Queryable,
    running: Box<Running>,
    outcome: &Outcome,
    messages: &[Message],
) -> Result<Finished, Error> {
    crash::point("my-tx-effect-done");
    semel_core::outbox::check(messages)?;
    let messages = if mutant::on("my-tx-messages-forgotten") { &[] } else { messages };
    let Running { work, call } = *running;
    let (holder, began) = (work.holder(), work.in_progress().attempt_at);
    let finished = Finished { operation: holder.operation, nonce: holder.nonce };
    let values = outcome_values(&work.finish(call.prepare(outcome), began), finished);
    let outcome = inline(sql::TX_OUTCOME, &values);
    let between: Vec<String> =
        statements(messages, None).iter().map(|(statement, values)| inline(statement, values)).collect();
    let bytes: usize = between.iter().map(String::len).sum();
    let said = if bytes + outcome.len() <= TEXT_BYTES_MAX {
        say(transaction, &sql::tx_finish(&between, &outcome)).await
    } else {
        say(transaction, &sql::tx_finish(&[], "DO 0")).await.map_err(ended)?;
        enqueue(transaction, messages).await?;
        bind(transaction, sql::TX_OUTCOME, values).await
    };
    let said = said.map_err(ended)?;
    if said.changed != 1 || said.number != Some(finished.mark()) {
        let text = "this transaction has not begun the operation, or rolled back to before it had; begin, effect and \
                    finish belong in one transaction; roll back, and look what was committed by itself";
        return Err(unsure(Error::new(Kind::Misconfigured, text)));
    }
    crash::point("my-tx-finished");
    Ok(finished)
}

/// The values of `tx_outcome.sql`.
fn outcome_values(record: &Record, finished: Finished) -> Vec<Value> {
    let state = record.state as u8;
    vec![
        state.into(),
        record.outcome.as_deref().into(),
        record.history.encode().into(),
        state.into(),
        finished.mark().into(),
        row::key(finished.operation),
        (record.token.0 as i64).into(),
        finished.nonce.as_bytes()[..].into(),
    ]
}

fn told(fault: Fault) -> Error {
    fault.error()
}

/// The error of a statement that found its transaction ended, or failed in another way.
fn ended(fault: Fault) -> Error {
    if fault.transaction_gone { unsure(fault.error()) } else { fault.error() }
}

/// An error after which statements of the caller may stay: those that ran when the transaction was over already.
fn unsure(error: Error) -> Error {
    if mutant::on("my-tx-lost-effect-denied") { error } else { error.maybe_applied() }
}

/// Commits. When the answer is lost, `resolve` is asked, on another connection: see [`resolve`].
///
/// An error whose [outcome is not unknown](Error::outcome_is_unknown) means that nothing happened. The other kind
/// means that nobody could find out: tell the client to come back, and its retry will.
///
/// It refuses a transaction that is not as [`finish`] left it, rolled back by an error that was ignored or to a
/// savepoint before it, and rolls back what is open. With `autocommit` on, what came after that error may stay: the
/// outcome is unknown. Committing in another way is allowed and checks nothing.
///
/// # Cancellation
/// Dropped, it is committed or not; a retry finds out.
pub async fn commit<F>(
    mut transaction: Transaction<'_>,
    finished: Finished,
    resolve: impl FnOnce(Finished) -> F,
) -> Result<Committed, Error>
where
    F: Future<Output = Result<Fate, Error>>,
{
    let committed = Committed::seen(finished.operation);
    // If the last word on this connection is the outcome's, it is still there: nothing came after it that could
    // have undone it.
    let is_last =
        transaction.last_insert_id() == Some(finished.mark()) || mutant::on("my-tx-commit-unchecked");
    if !is_last && let Err(error) = still_there(&mut transaction, finished).await {
        if let Err(error) = transaction.rollback().await {
            tracing::warn!(operation = %finished.operation, %error, "a rollback failed; the server ends it");
        }
        return Err(unsure(error));
    }
    crash::point("my-tx-before-commit");
    let Err(error) = transaction.commit().await else {
        crash::point("my-tx-after-commit");
        return Ok(committed);
    };
    let fault = Fault::of_commit(&error);
    if fault.changed_nothing() {
        return Err(fault.error());
    }
    match resolve(finished).await {
        Ok(Fate::Committed) => Ok(committed),
        Ok(Fate::NotCommitted) => Err(Fault::of(&error).error()),
        Err(unresolved) => {
            tracing::warn!(operation = %finished.operation, error = %unresolved, "a commit could not be resolved");
            Err(fault.error())
        }
    }
}

/// Fails if the outcome is not part of the transaction any more.
async fn still_there(transaction: &mut Transaction<'_>, finished: Finished) -> Result<(), Error> {
    let values = [row::key(finished.operation), finished.nonce.as_bytes()[..].into()];
    let said = tell(transaction, sql::TX_THERE, &values).await.map_err(told)?;
    if said.row(0).is_some() {
        return Ok(());
    }
    let text = "the outcome is not part of this transaction any more: it was rolled back after finish, by an error \
                that was ignored or to a savepoint; with autocommit, statements after that error were committed by \
                themselves: look, before it is tried again";
    Err(Error::new(Kind::Misconfigured, text))
}

/// Finds out what became of a commit whose answer was lost: waits until that transaction is over, by the
/// operation's lock, and looks for its record. On a connection with no transaction open: one that is would be
/// committed. Afterwards none is, also where `autocommit` is off.
///
/// After `patience`, in whole seconds, it gives up with a retryable error. A server that did not notice that its
/// client is gone keeps the transaction open until it does.
///
/// # Cancellation
/// Nothing is left behind but the session's `innodb_lock_wait_timeout`, which may be as long as `patience`.
pub async fn resolve(
    elsewhere: &mut impl Queryable,
    finished: Finished,
    patience: Duration,
) -> Result<Fate, Error> {
    const LIMIT: &str = "SET SESSION innodb_lock_wait_timeout = ?";
    let said = say(elsewhere, "SELECT @@innodb_lock_wait_timeout").await.map_err(told)?;
    let before = row::int(said.row(0).ok_or_else(no_row)?, 0)?;
    tell(elsewhere, LIMIT, &[patience.as_secs().max(1).into()]).await.map_err(told)?;
    let found = waited(elsewhere, finished).await;
    // What was found out stays true, whatever becomes of the connection.
    if let Err(fault) = tell(elsewhere, LIMIT, &[before.into()]).await {
        tracing::warn!(error = %fault.error(), "innodb_lock_wait_timeout of a session could not be set back");
    }
    found
}

/// What became of an attempt, once nobody holds the operation.
async fn waited(elsewhere: &mut impl Queryable, finished: Finished) -> Result<Fate, Error> {
    let nonce = finished.nonce.as_bytes()[..].into();
    let values = [slot(finished.operation).into(), row::key(finished.operation), nonce];
    let said = match tell(elsewhere, &sql::tx_resolve(), &values).await {
        Ok(said) => said,
        Err(fault) => {
            // What was behind the statement that failed has not run, and that includes the COMMIT.
            if let Err(fault) = say(elsewhere, "ROLLBACK").await {
                tracing::warn!(error = %fault.error(), "a transaction that only looked could not be rolled back");
            }
            return Err(fault.error());
        }
    };
    said.row(FREE).ok_or_else(seedless)?;
    Ok(if said.row(LANDED).is_some() { Fate::Committed } else { Fate::NotCommitted })
}

/// Which lock an operation has.
fn slot(operation: OperationId) -> u16 {
    let [first, second, ..] = operation.as_bytes();
    u16::from_be_bytes([*first, *second]) / (u16::MAX / SLOTS + 1)
}

fn seedless() -> Error {
    Error::new(
        Kind::Schema,
        "the table semel_slot lacks rows; restore it from a backup, or fill it with 0 to 16383",
    )
}
