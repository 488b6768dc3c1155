//! Claim, effect, messages and outcome in one transaction of the caller.
//!
//! The caller opens a transaction on the database that holds the store's tables, with tokio-postgres or
//! (feature `sqlx-postgres`) sqlx. [`begin`] says whether to run; then come the caller's own statements;
//! [`finish`] writes the outcome and the messages; the caller commits, best with [`commit`]. Before the
//! commit nobody sees any of it, after it everything, so a crash anywhere leaves all or nothing.
//!
//! A duplicate that comes meanwhile is told so at once: the operation's lock is asked for and never waited
//! for. The lock belongs to the transaction, and nothing here belongs to a session, so a pooler in
//! transaction mode may stand between.
//!
//! Nothing here opens a transaction of its own but [`resolve`], which is for another connection, and nothing
//! calls anybody but the database. A call to another service inside the transaction is the caller's mistake:
//! it is not undone when the transaction is.
//!
//! ```no_run
//! # async fn pay(client: &mut tokio_postgres::Client, other: &tokio_postgres::Client,
//! #              call: &semel_core::joined::Call) -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::Outcome;
//! use semel_stores::postgres::tx::{self, Begun};
//!
//! let transaction = client.transaction().await?;
//! let running = match tx::begin(&transaction, call).await? {
//!     Begun::Run(running) => running,
//!     Begun::Replay(outcome) => return Ok(println!("it has happened: {:?}", outcome.body_bytes())),
//!     Begun::Refused(why) => return Err(why.into()),
//! };
//! transaction.execute("UPDATE account SET cents = cents - 2000 WHERE name = 'alice'", &[]).await?;
//! let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await?;
//! let resolve = async |lost| tx::resolve(other, lost, tx::PATIENCE).await;
//! let _committed = tx::commit(transaction, finished, resolve).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Savepoints
//! Effect and [`finish`] belong at the same level: what is rolled back must take the other with it. A
//! rollback to a savepoint before [`begin`] undoes the beginning and frees the lock; `finish` then fails. A
//! rollback to a savepoint after it undoes only what came after; [`commit`] fails if that was the outcome.
//!
//! # Isolation
//! Under READ COMMITTED a record is read after the lock was taken. Under REPEATABLE READ and SERIALIZABLE the
//! transaction may look at an older state; then [`finish`] or the commit fails with 40001, nothing has happened,
//! and the whole transaction is to be tried again. Such errors are [retryable](Error::is_retryable).

mod driver;
pub mod fence;
#[cfg(feature = "sqlx-postgres")]
mod sqlx;
mod value;

use std::future::Future;
use std::time::Duration;

use semel_core::claim::Claim;
use semel_core::clock::{Timestamp, micros};
use semel_core::error::Error;
use semel_core::joined::{self, Call, Committed};
use semel_core::record::{self, Moment, Record};
use semel_core::{Message, Nonce, Operation, OperationId, Outcome, Refusal, Token, attempt, mutant};

use super::chores::no_row;
use super::row::{self, Cells, there};
use super::sql;
use driver::{Ends, Speaks};
use value::Value;

/// How long [`resolve`] is good to wait for a transaction whose end nobody saw.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The caller's transaction: `&tokio_postgres::Transaction` (or a `Client` that has one open), or
/// `&mut sqlx::PgConnection`, which is `&mut *transaction`.
#[allow(private_bounds)]
pub trait Connection: Speaks {}
impl<C: Speaks> Connection for C {}

/// A transaction that can be committed: of tokio-postgres or of sqlx.
#[allow(private_bounds)]
pub trait Commits: Ends {}
impl<C: Ends> Commits for C {}

/// What came of beginning.
#[derive(Debug)]
pub enum Begun {
    /// Run the effect, finish, commit.
    Run(Box<Running>),
    /// It has happened; this is the stored outcome. There is nothing to commit.
    Replay(Outcome),
    /// Do not run. There is nothing to commit.
    Refused(Refusal),
}

/// An attempt that lives in the caller's transaction. Dropped with it, nothing has happened.
#[derive(Debug)]
pub struct Running {
    work: joined::Work,
    call: Call,
    /// The version of the row it takes the place of.
    replaces: Option<i64>,
    began: Timestamp,
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

/// What became of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Everything happened, and every retry is told so.
    Committed,
    /// Nothing happened, and nothing of it can happen any more.
    NotCommitted,
}

/// Asks whether to run: one round trip. Takes the operation's lock until the transaction ends, or says that
/// another attempt is running.
///
/// An error leaves the transaction as any failed statement does: roll it back.
///
/// # Cancellation
/// Dropped, the lock may be held until the transaction ends.
pub async fn begin(mut connection: impl Connection, call: &Call) -> Result<Begun, Error> {
    call.check()?;
    let request = call.request();
    let id = request.operation.id();
    let values = [Value::Bytea(Some(id.as_bytes())), Value::Bytea(Some(request.nonce.as_bytes()))];
    let rows = connection.ask(&sql::tx_begin(), &values).await.map_err(|fault| fault.error())?;
    let row = rows.first().ok_or_else(no_row)?;
    let now = row::time(row, 1)?;
    if !there(row.bool(0)?, "held")? {
        let told = call.told(Claim::InFlight { since: now, until: now });
        return Ok(told.map_or_else(Begun::Refused, Begun::Replay));
    }
    let fresh = Token(there(row.int8(2)?, "fresh")? as u64);
    let replaces = row.int8(3)?;
    let current = replaces.map(|_| row::record(row, 4)).transpose()?;
    let at = Moment { now, fresh };
    let mut begun = joined::begin(&request, current.as_ref(), at);
    if let joined::Begun::Told(Claim::OtherVersion { version }) = begun
        && let Some(request) = call.request_under(version)
    {
        begun = joined::begin(&request, current.as_ref(), at);
    }
    Ok(match begun {
        joined::Begun::Run(work) => {
            Begun::Run(Box::new(Running { work: *work, call: call.clone(), replaces, began: now }))
        }
        joined::Begun::Told(claim) => call.told(claim).map_or_else(Begun::Refused, Begun::Replay),
    })
}

/// Writes the outcome and the messages into the transaction: one round trip. Whatever the outcome says, it is
/// what every retry will get.
///
/// An error leaves the transaction aborted, so that it cannot commit: the attempt was not begun in it,
/// somebody outside came in between, or a message cannot be sent. Roll it back and begin again.
///
/// # Cancellation
/// Dropped, the outcome may be written; the transaction must be rolled back.
pub async fn finish(
    mut connection: impl Connection,
    running: Box<Running>,
    outcome: &Outcome,
    messages: &[Message],
) -> Result<Finished, Error> {
    if let Err(error) = semel_core::outbox::check(messages) {
        // The effect may be there already: it must not be committed without its record. If this does not
        // arrive, nothing else of the transaction will.
        let why = error.to_string();
        let _ = connection.ask(sql::TX_FAIL, &[Value::Text(Some(&why))]).await;
        return Err(error);
    }
    let holder = running.work.holder();
    let record = running.work.finish(running.call.prepare(outcome), running.began);
    let replaces = running.work.replaces().filter(|_| running.replaces.is_some());
    let history = record.history.encode();
    let mut values = columns(&record, &holder.operation, history.as_deref());
    values.extend([
        Value::Int8(running.replaces),
        Value::Int8(replaces.map(|holder| holder.token.0 as i64)),
        Value::Bytea(replaces.as_ref().map(|holder| &holder.nonce.as_bytes()[..])),
    ]);
    if !messages.is_empty() && !mutant::on("joined-messages-lost") {
        values.extend(message_columns(messages));
    }
    let rows =
        connection.ask(&sql::tx_finish(messages.len()), &values).await.map_err(|fault| fault.error())?;
    rows.first().ok_or_else(no_row)?;
    Ok(Finished { operation: holder.operation, nonce: holder.nonce })
}

/// Commits. When the answer is lost, `resolve` is asked, on another connection: see [`resolve`].
///
/// An error whose [outcome is not unknown](Error::outcome_is_unknown) means that nothing happened. The other
/// kind means that nobody could find out: tell the client to come back, and its retry will.
///
/// `transaction` is the outermost one. A nested one (a savepoint, which both drivers call a transaction as well)
/// cannot be told from it: given that, everything around it is committed too, and whoever owns the outer one
/// goes on without a transaction. Commit the nested one by its own method, and then the outermost here.
///
/// It fails if the outcome was rolled back to a savepoint before it, and if an error was ignored before: a COMMIT by itself
/// would then roll back and report success. Committing in another way is allowed and checks neither.
///
/// # Cancellation
/// Dropped, it is committed or not; a retry finds out.
pub async fn commit<F>(
    transaction: impl Commits,
    finished: Finished,
    resolve: impl FnOnce(Finished) -> F,
) -> Result<Committed, Error>
where
    F: Future<Output = Result<Fate, Error>>,
{
    let committed = Committed::seen(finished.operation);
    let values =
        [Value::Bytea(Some(finished.operation.as_bytes())), Value::Bytea(Some(finished.nonce.as_bytes()))];
    let Err(fault) = transaction.end(&value::inline(sql::tx_commit(), &values)).await else {
        return Ok(committed);
    };
    if !fault.broken {
        return Err(fault.error());
    }
    if mutant::on("lost-commit-reported-failed") {
        return Err(fault.error());
    }
    match resolve(finished).await {
        Ok(Fate::Committed) => Ok(committed),
        Ok(Fate::NotCommitted) => Err(fault.error()),
        Err(error) => {
            tracing::warn!(operation = %finished.operation, %error, "a commit could not be resolved");
            Err(fault.with_commit().error())
        }
    }
}

/// Finds out what became of a commit whose answer was lost: waits until that transaction is over, by the
/// operation's lock, and looks for its record. On a connection with no transaction open; one round trip.
///
/// After `patience` it gives up with a retryable error. A server that did not notice that its client is gone keeps
/// the transaction open until it does.
///
/// # Cancellation
/// Safe; nothing is left behind.
pub async fn resolve(
    mut elsewhere: impl Connection,
    finished: Finished,
    patience: Duration,
) -> Result<Fate, Error> {
    let limit = format!("{}ms", patience.as_millis().clamp(1, i32::MAX as u128));
    let values = [
        Value::Bytea(Some(finished.operation.as_bytes())),
        Value::Bytea(Some(finished.nonce.as_bytes())),
        Value::Text(Some(&limit)),
    ];
    let told = elsewhere.tell(sql::RESOLVE, &values).await.map_err(|fault| fault.error())?;
    match told.as_deref() {
        Some("t") => Ok(Fate::Committed),
        Some("f") => Ok(Fate::NotCommitted),
        _ => Err(no_row()),
    }
}

/// The columns of a record in the order of the table.
fn columns<'a>(record: &'a Record, id: &'a OperationId, history: Option<&'a [u8]>) -> Vec<Value<'a>> {
    let time = |at: Timestamp| Value::Int8(Some(at.as_micros()));
    let span = |duration| Value::Int8(Some(micros(duration)));
    let scope = record.operation.scope();
    vec![
        Value::Int8(Some(record.token.0 as i64)),
        time(record.created_at),
        time(record.attempt_at),
        time(record.lease_until),
        Value::Int8(record.settled_at.map(Timestamp::as_micros)),
        time(record::first_look(record)),
        span(record.terms.lease),
        span(record.terms.run_max),
        span(record.terms.ttl),
        span(record.terms.retry_window),
        Value::Int4(record.print.version as i32),
        Value::Int4(record.attempts as i32),
        Value::Int2(i16::from(record.state as u8)),
        Value::Int2(i16::from(record.terms.recovery as u8)),
        Value::Bytea(Some(id.as_bytes())),
        Value::Bytea(Some(record.nonce.as_bytes())),
        Value::Bytea(Some(&record.print.digest)),
        Value::Bytea(Some(record.print.paths.encode())),
        Value::Text(Some(scope.namespace())),
        Value::Text(scope.tenant()),
        Value::Text(Some(scope.route())),
        Value::Text(Some(record.operation.key().as_str())),
        Value::Text(record.subject.as_deref()),
        Value::Bytea(record.outcome.as_deref()),
        Value::Bytea(history),
    ]
}

/// Messages column by column, as `semel_enqueue_all` takes them.
fn message_columns(messages: &[Message]) -> [Value<'_>; 10] {
    fn texts<'a>(messages: &'a [Message], of: impl Fn(&'a Message) -> Option<&'a str>) -> Value<'a> {
        Value::Texts(messages.iter().map(|message| of(message).map(Into::into)).collect())
    }
    let lines = |message: &Message| {
        message
            .headers
            .iter()
            .map(|header| format!("{}: {}\n", header.name, header.value))
            .collect::<String>()
    };
    [
        Value::Texts(messages.iter().map(|message| Some(message.id.to_string().into())).collect()),
        texts(messages, |message| Some(message.topic.as_str())),
        texts(messages, |message| message.key.as_deref()),
        Value::Texts(messages.iter().map(|message| Some(lines(message).into())).collect()),
        texts(messages, |message| Some(&message.content_type)),
        Value::Byteas(messages.iter().map(|message| &message.payload[..]).collect()),
        texts(messages, |message| message.correlation.as_deref()),
        texts(messages, |message| message.causation.as_deref()),
        texts(messages, |message| message.trace_parent.as_deref()),
        Value::Int8s(
            messages.iter().map(|message| message.deliver_after.map(Timestamp::as_micros)).collect(),
        ),
    ]
}
