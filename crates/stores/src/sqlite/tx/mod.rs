//! Claim, effect, messages and outcome in one transaction of the caller.
//!
//! The caller opens a transaction on the file that holds the store's tables, on a connection of its own, with
//! BEGIN IMMEDIATE. [`begin`] says whether to run; then come the caller's own statements; [`finish`] writes the
//! outcome and the messages; the caller commits, best with [`commit`]. Before the commit nobody sees any of it,
//! after it everything, so a crash anywhere leaves all or nothing.
//!
//! SQLite has one writer at a time, so the write lock is the operation's lock: a duplicate that comes
//! meanwhile waits in its own BEGIN IMMEDIATE, for as long as the busy time-out of its connection says, and
//! then sees what came of the first. Keep such transactions short, and give every connection a time-out.
//!
//! Nothing here opens a transaction but [`resolve`], which is for another connection, and nothing calls
//! anybody but the database. A call to another service inside the transaction is the caller's mistake: it is
//! not undone when the transaction is, and everybody waits for it.
//!
//! ```no_run
//! # fn pay(conn: &mut rusqlite::Connection, call: &semel_core::joined::Call)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! use rusqlite::TransactionBehavior::Immediate;
//! use semel_core::{Message, Outcome};
//! use semel_stores::sqlite::tx::{self, Begun};
//!
//! let transaction = conn.transaction_with_behavior(Immediate)?;
//! let running = match tx::begin(&transaction, call)? {
//!     Begun::Run(running) => running,
//!     Begun::Replay(outcome) => return Ok(println!("it has happened: {:?}", outcome.body_bytes())),
//!     Begun::Refused(why) => return Err(why.into()),
//! };
//! transaction.execute("UPDATE account SET cents = cents - 2000 WHERE name = 'alice'", [])?;
//! let paid = Message::new("orders.paid".parse()?, r#"{"order": 1042}"#).key("order-1042");
//! let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[paid])?;
//! let committed = tx::commit(transaction, finished)?;
//! # drop(committed);
//! # Ok(())
//! # }
//! ```
//!
//! # Savepoints
//! Effect and [`finish`] belong at the same level: what is rolled back must take the other with it. A rollback
//! to a savepoint before [`begin`] undoes the beginning; `finish` then fails. A rollback to one after it
//! undoes only what came after. SQLite does not say how deep a connection is in savepoints, so nothing here
//! can check it.

pub mod fence;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Transaction, TransactionState};
use semel_core::claim::Claim;
use semel_core::error::{Error, Kind};
use semel_core::joined::{self, Call, Committed};
use semel_core::outbox;
use semel_core::record::{Moment, Record, State};
use semel_core::{
    Clock, Message, Nonce, Operation, OperationId, Outcome, Refusal, SystemClock, Timestamp, Token, attempt,
    mutant,
};

use super::error::Fault;
use super::generations::{Generations, Span};
use super::outbox::{enqueue_at, must_be_in_transaction, must_sync, tell};
use super::reader::Description;
use super::shared::Shared;
use super::standing::Standing;
use super::witness::Witness;
use super::{SqliteStore, reader, row};
use crate::crash;

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

/// An attempt that lives in the caller's transaction. Rolled back with it, nothing has happened. Committed
/// without being finished, it is a claim that lapses.
pub struct Running {
    work: joined::Work,
    call: Call,
    clock: Arc<dyn Clock>,
    span: Span,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = self.work.holder();
        f.debug_struct("Running")
            .field("operation", &holder.operation)
            .field("token", &holder.token)
            .finish_non_exhaustive()
    }
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

/// What became of a commit whose end was not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Everything happened, and every retry is told so.
    Committed,
    /// Nothing happened, and nothing of it can happen any more.
    NotCommitted,
}

/// Asks whether to run, in the caller's transaction. Judged by the machine's clock and by the witness beside
/// the database; a store with others has [a method](SqliteStore::begin) for it.
///
/// Refused, with nothing written: a connection with no transaction, one that does not hold the write lock
/// yet (BEGIN instead of BEGIN IMMEDIATE), and one that does not sync its commits. Not noticed: a file that was moved,
/// deleted or replaced since the connection was opened. The method of a store notices it.
pub fn begin(transaction: &Connection, call: &Call) -> Result<Begun, Error> {
    let witness = witness_beside(transaction)?;
    begin_with(transaction, call, Arc::new(SystemClock), None, |store| is_sound(store, witness))
}

fn witness_beside(conn: &Connection) -> Result<Option<Witness>, Error> {
    let path = conn.path().unwrap_or_default();
    Witness::load(&PathBuf::from(format!("{path}-semel-witness")))
}

/// Whether the store is where its witness saw it, or further.
fn is_sound(store: &Description, witness: Option<Witness>) -> bool {
    Standing::at_open(store.store_id, store.mark, witness.as_slice()).behind.is_none()
}

fn went_back() -> Error {
    let text = "the database was restored from an older state, or is not the one that was used here before; \
                reconcile, then acknowledge the restore (semel store acknowledge --by NAME)";
    Error::new(Kind::WentBack, text)
}

impl SqliteStore {
    /// [`begin`], with this store's clock and what it has seen.
    pub fn begin(&self, transaction: &Connection, call: &Call) -> Result<Begun, Error> {
        let seen = self.shared.seen();
        let Shared { options, generations, place, .. } = &*self.shared;
        // What is written to a file that was moved away or deleted is lost with it.
        if transaction.path().is_some_and(|path| place.path() == Path::new(path))
            && !mutant::on("sqlite-tx-in-a-lost-file")
        {
            place.check().map_err(|fault| fault.tell(place.path()))?;
        }
        // A copy has the same identity and another history.
        let is_here = transaction.path().is_some_and(|path| place.is_at(Path::new(path)))
            || mutant::on("sqlite-filter-of-another-file");
        let known = Some(generations).filter(|_| is_here);
        begin_with(transaction, call, options.clock.clone(), known, |store| {
            // Another store is certainly not the one that was seen.
            store.store_id == self.shared.store_id
                && match is_here {
                    true => self.shared.judge(seen, store.mark).is_ok(),
                    false => !store.mark.is_behind(seen),
                }
        })
    }
}

fn begin_with(
    conn: &Connection,
    call: &Call,
    clock: Arc<dyn Clock>,
    generations: Option<&Generations>,
    is_sound: impl FnOnce(&Description) -> bool,
) -> Result<Begun, Error> {
    call.check()?;
    must_hold_write_lock(conn)?;
    must_sync(conn)?;
    let store = reader::describe(conn).map_err(|fault| tell(conn, &fault))?;
    if !is_sound(&store) {
        return Err(went_back());
    }
    let begun =
        run_or_tell(conn, call, &store, generations, clock.now()).map_err(|fault| tell(conn, &fault))?;
    crash::point("sqlite-tx-begun");
    Ok(match begun {
        joined::Begun::Run(work) => {
            Begun::Run(Box::new(Running { work: *work, call: call.clone(), clock, span: store.span }))
        }
        joined::Begun::Told(claim) => call.told(claim).map_or_else(Begun::Refused, Begun::Replay),
    })
}

fn run_or_tell(
    conn: &Connection,
    call: &Call,
    store: &Description,
    generations: Option<&Generations>,
    now: Timestamp,
) -> Result<joined::Begun, Fault> {
    let request = call.request();
    let id = request.operation.id();
    let current = match generations {
        Some(generations) => generations.find(conn, id, store.mark)?,
        None => row::find(conn, id)?,
    };
    let fresh = Token(store.mark.token.0 + 1);
    let at = Moment { now, fresh };
    let mut begun = joined::begin(&request, current.as_ref(), at);
    if let joined::Begun::Told(Claim::OtherVersion { version }) = begun
        && let Some(request) = call.request_under(version)
    {
        begun = joined::begin(&request, current.as_ref(), at);
    }
    if let joined::Begun::Run(work) = &begun {
        row::put(conn, store.span, current.as_ref(), work.in_progress())?;
        // At once: another operation of the same transaction must not get the same token.
        let values = [row::signed(Token(store.mark.epoch))?, row::signed(fresh)?];
        conn.prepare_cached(include_str!("../sql/set_mark.sql"))?.execute(values)?;
    }
    Ok(begun)
}

/// Writes the outcome and the messages into the transaction. Whatever the outcome says, it is what every retry
/// will get.
///
/// On an error roll the transaction back: the attempt was not begun in it, a message could not be published,
/// or the database failed.
pub fn finish(
    transaction: &Connection,
    running: Box<Running>,
    outcome: &Outcome,
    messages: &[Message],
) -> Result<Finished, Error> {
    crash::point("sqlite-tx-effect-done");
    must_hold_write_lock(transaction)?;
    outbox::check(messages)?;
    let Running { work, call, clock, span } = *running;
    let (holder, now) = (work.holder(), clock.now());
    let current = row::find(transaction, holder.operation).map_err(|fault| tell(transaction, &fault))?;
    let begun_here = |record: &Record| record.holder() == holder && record.state == work.in_progress().state;
    let Some(current) = current.filter(begun_here) else {
        let text = "this transaction has not begun the operation, or rolled back to before it had; begin, effect \
                    and finish belong in one transaction";
        return Err(Error::new(Kind::Misconfigured, text));
    };
    let record = work.finish(call.prepare(outcome), now);
    // Both or neither: who commits in spite of an error must not have an outcome without its messages.
    all_or_nothing(transaction, || {
        row::put(transaction, span, Some(&current), &record).map_err(|fault| tell(transaction, &fault))?;
        if mutant::on("sqlite-tx-messages-forgotten") {
            return Ok(());
        }
        enqueue_at(transaction, messages, now)
    })?;
    crash::point("sqlite-tx-finished");
    Ok(Finished { operation: holder.operation, nonce: holder.nonce })
}

fn all_or_nothing(conn: &Connection, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let run = |sql: &str| conn.execute_batch(sql).map_err(|error| tell(conn, &error.into()));
    run("SAVEPOINT semel_finish")?;
    let done = work();
    if done.is_err() {
        // Fails only where the whole transaction is gone already.
        let _ = run("ROLLBACK TO semel_finish");
    }
    run("RELEASE semel_finish").and(done)
}

/// Whether the outcome is still part of the transaction: a savepoint may have been rolled back since, and a
/// [`Finished`] may be of another transaction.
fn must_be_finished_here(conn: &Connection, finished: Finished) -> Result<(), Error> {
    let record = row::find(conn, finished.operation).map_err(|fault| tell(conn, &fault))?;
    let here =
        record.is_some_and(|record| record.nonce == finished.nonce && record.state == State::Completed);
    if here || mutant::on("sqlite-tx-commit-unchecked") {
        return Ok(());
    }
    let text = "the outcome is not part of this transaction any more: it was rolled back to before finish, or is \
                another transaction's; nothing was committed";
    Err(Error::new(Kind::Misconfigured, text))
}

/// Commits. Refused, and rolled back, if the outcome is not part of the transaction. An error whose [outcome is not unknown](Error::outcome_is_unknown) means that nothing happened.
/// The other kind means that the disk failed in the middle of it: ask [`resolve`] on another connection, or
/// tell the client to come back, and its retry will find out.
pub fn commit(transaction: Transaction<'_>, finished: Finished) -> Result<Committed, Error> {
    crash::point("sqlite-tx-before-commit");
    let path = transaction.path().map(PathBuf::from).unwrap_or_default();
    // Dropped on an error, and so rolled back.
    must_be_finished_here(&transaction, finished)?;
    let committed = transaction.commit();
    crash::point("sqlite-tx-after-commit");
    committed.map(|()| Committed::seen(finished.operation)).map_err(|error| {
        let fault = Fault::from(error);
        let error = fault.tell(&path);
        match fault.commit_did_nothing() {
            true => error,
            false => {
                tracing::warn!(operation = %finished.operation, %error, "a commit ended in doubt");
                error.maybe_applied()
            }
        }
    })
}

/// Finds out what became of a commit whose end was not seen: waits until that transaction is over, by the
/// write lock, looks for its record, and commits a write of its own. On a connection with no transaction open, which
/// syncs its commits; its busy time-out says how long it waits.
///
/// After any error it is as unknown as before, and [the error says so](Error::outcome_is_unknown): ask again.
///
/// After a crash before its commit: nobody was answered. After it: what was answered stays so.
pub fn resolve(elsewhere: &mut Connection, finished: Finished) -> Result<Fate, Error> {
    must_sync(elsewhere).map_err(Error::maybe_applied)?;
    let path = elsewhere.path().map(PathBuf::from).unwrap_or_default();
    let mut look = || -> Result<Fate, Fault> {
        let locked = elsewhere.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let record = row::find(&locked, finished.operation)?;
        let ours = record.is_some_and(|record| record.nonce == finished.nonce);
        // A commit whose sync failed is whole in the log, and the next recovery would believe it: to look for it is
        // not enough. What is written here goes over its first page and so ends it; what did commit is synced along.
        if !mutant::on("sqlite-resolve-only-looks") {
            locked.execute(include_str!("../sql/spend_token.sql"), [])?;
            locked.commit()?;
        }
        crash::point("sqlite-tx-resolved");
        Ok(if ours { Fate::Committed } else { Fate::NotCommitted })
    };
    look().map_err(|fault| fault.tell(&path).maybe_applied())
}

/// A transaction that only reads so far would find out after its effect that somebody wrote meanwhile.
fn must_hold_write_lock(conn: &Connection) -> Result<(), Error> {
    must_be_in_transaction(conn)?;
    let state = conn.transaction_state(Some("main")).map_err(|error| tell(conn, &error.into()))?;
    if state != TransactionState::Write && !mutant::on("sqlite-tx-without-lock") {
        let text = "this transaction does not hold the write lock yet, so another could come in between; begin it \
                    with BEGIN IMMEDIATE";
        return Err(Error::new(Kind::Misconfigured, text));
    }
    Ok(())
}
