//! A handler's statements and the ledger in one transaction.

use std::sync::Arc;
use std::time::Instant;

use rusqlite::Transaction;
use semel_core::error::Error;
use semel_core::inbox::{Applied, Apply, Arrival, Batch, Failure, Kept, Received, State, asides};
use semel_core::store::Pending;

use super::{SqliteInbox, advance_in, finish_in, receive_as, set_aside_in};
use crate::crash;
use crate::sqlite::error::Fault;

/// What a service does with a message, in the transaction its ledger row is in.
///
/// Everything written through `tx` commits with the ledger row or not at all. It must not do anything that a
/// rollback does not undo: it is run again. It holds the file's write lock, so it should be short.
pub trait Handler: Send + Sync + 'static {
    /// Applies one message.
    fn apply(&self, tx: &Transaction<'_>, arrival: &Arrival) -> Result<(), Failure>;
}

impl<F> Handler for F
where
    F: Fn(&Transaction<'_>, &Arrival) -> Result<(), Failure> + Send + Sync + 'static,
{
    fn apply(&self, tx: &Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        self(tx, arrival)
    }
}

/// What an error of a statement means for a message: a broken constraint or a value of the wrong kind never
/// gets better.
pub fn failure(error: &rusqlite::Error) -> Failure {
    use rusqlite::ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
    match error.sqlite_error_code() {
        Some(ConstraintViolation | TypeMismatch | TooBig) => Failure::Never(error.to_string()),
        _ => Failure::Later(error.to_string()),
    }
}

/// A handler and the ledger, in one transaction per batch.
pub struct Joined<H> {
    inbox: Arc<SqliteInbox>,
    handler: Arc<H>,
}

impl<H: Handler> Joined<H> {
    /// Joins them.
    pub fn new(inbox: Arc<SqliteInbox>, handler: H) -> Self {
        Self { inbox, handler: Arc::new(handler) }
    }
}

impl<H: Handler> Apply for Joined<H> {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            let (handler, batch) = (self.handler.clone(), batch.clone());
            self.inbox.run(move |inbox| run(inbox, &*handler, &batch)).await
        })
    }
}

fn run<H: Handler>(inbox: &SqliteInbox, handler: &H, batch: &Batch) -> Result<Applied, Error> {
    inbox.connected(|conn| {
        let tx = inbox.begin(conn)?;
        let done = inside(inbox, &tx, handler, batch).map_err(|fault| inbox.tell(&fault))?;
        if matches!(done, Applied::Committed(_)) {
            crash::point("inbox-before-commit");
            if let Err(error) = tx.commit() {
                let fault = Fault::from(error);
                let told = inbox.tell(&fault);
                return Err(if fault.commit_did_nothing() { told } else { told.maybe_applied() });
            }
            crash::point("inbox-after-commit");
        }
        Ok(done)
    })
}

/// Whatever does not end as committed is rolled back with the transaction.
fn inside<H: Handler>(
    inbox: &SqliteInbox,
    tx: &Transaction<'_>,
    handler: &H,
    batch: &Batch,
) -> Result<Applied, Fault> {
    let (began, now) = (Instant::now(), inbox.now());
    let begun = receive_as(tx, &batch.group, &batch.arrivals, now, State::Done)?;
    for (index, arrival) in batch.arrivals.iter().enumerate() {
        if begun.received[index] == Received::New
            && let Err(failure) = handler.apply(tx, arrival)
        {
            return Ok(Applied::Failed { at: Some(index), failure });
        }
    }
    set_aside_in(tx, &batch.group, &asides(batch, &begun.received), now)?;
    if advance_in(tx, &batch.group, &batch.offsets)? == Kept::Fenced {
        return Ok(Applied::Fenced);
    }
    finish_in(tx, &begun, began.elapsed())?;
    Ok(Applied::Committed(begun.received))
}
