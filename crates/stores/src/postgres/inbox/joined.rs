//! A handler's statements and the ledger in one transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Applied, Apply, Arrival, Batch, Failure, Kept, Received, State, asides};
use semel_core::store::Pending;
use tokio_postgres::Transaction;

use super::{PostgresInbox, advance, finish, receive_as, set_aside};
use crate::crash;
use crate::postgres::fault::{self, Fault};

/// What a service does with a message, in the transaction its ledger row is in.
///
/// Everything written through `tx`, messages for an outbox included, commits with the ledger row or not at
/// all. It must not commit, and must not do anything that a rollback does not undo: it is run again.
pub trait Handler: Send + Sync + 'static {
    /// Applies one message.
    fn apply(
        &self,
        tx: &Transaction<'_>,
        arrival: &Arrival,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Applies all new messages of a batch, in their order; for handlers that can do so in fewer statements.
    fn apply_all(
        &self,
        tx: &Transaction<'_>,
        arrivals: &[&Arrival],
    ) -> impl Future<Output = Result<(), At>> + Send {
        async move {
            for (index, arrival) in arrivals.iter().enumerate() {
                self.apply(tx, arrival).await.map_err(|failure| At { index: Some(index), failure })?;
            }
            Ok(())
        }
    }
}

/// Which of several messages failed.
#[derive(Clone, Debug)]
pub struct At {
    /// Its index among those given; `None` if it could be any.
    pub index: Option<usize>,
    /// Why.
    pub failure: Failure,
}

/// What an error of a statement means for a message: wrong data and broken constraints never get better.
pub fn failure(error: &tokio_postgres::Error) -> Failure {
    let reason = fault::chain(error);
    match error.code().map(|code| code.code()) {
        Some(code) if code.starts_with("22") || code.starts_with("23") => Failure::Never(reason),
        _ => Failure::Later(reason),
    }
}

/// A handler and the ledger, in one transaction per batch.
pub struct Joined<H> {
    inbox: Arc<PostgresInbox>,
    handler: H,
    idle_max: Duration,
}

impl<H: Handler> Joined<H> {
    /// Joins them. A transaction whose process stands still for a minute is ended by the server.
    pub fn new(inbox: Arc<PostgresInbox>, handler: H) -> Self {
        Self { inbox, handler, idle_max: Duration::from_secs(60) }
    }

    /// How long the handler may go without a statement before the server ends the transaction: so long a
    /// consumer that was stopped can keep others from its messages.
    pub fn idle_max(mut self, idle_max: Duration) -> Self {
        self.idle_max = idle_max;
        self
    }

    async fn run(&self, batch: &Batch) -> Result<Applied, Error> {
        let mut link = self.inbox.link().await?;
        link.busy();
        let client = link.client();
        let done = match client.transaction().await {
            Ok(tx) => self.inside(tx, batch).await,
            Err(error) => Err(Fault::of(&error).error()),
        };
        if client.is_closed() && matches!(done, Ok(Applied::Failed { .. })) {
            let text = "the connection to PostgreSQL broke while a message was applied";
            return Err(Error::new(Kind::Unreachable, text));
        }
        // A transaction that was not committed is rolled back when it is dropped, before anything else
        // on its connection.
        if !done.as_ref().is_err_and(Error::outcome_is_unknown) {
            link.done();
        }
        done
    }

    async fn inside(&self, tx: Transaction<'_>, batch: &Batch) -> Result<Applied, Error> {
        let began = Instant::now();
        let settings = super::store::settings(self.idle_max);
        let set = async { tx.batch_execute(&settings).await.map_err(|error| Fault::of(&error)) };
        let received = receive_as(&tx, &batch.group, &batch.arrivals, State::Done);
        let ((), begun) = try_join(set, received).await.map_err(|fault| fault.error())?;
        let new: Vec<usize> =
            (0..batch.arrivals.len()).filter(|index| begun.received[*index] == Received::New).collect();
        let arrivals: Vec<&Arrival> = new.iter().map(|index| &batch.arrivals[*index]).collect();
        if !arrivals.is_empty()
            && let Err(At { index, failure }) = self.handler.apply_all(&tx, &arrivals).await
        {
            return Ok(Applied::Failed { at: index.and_then(|index| new.get(index).copied()), failure });
        }
        set_aside(&tx, &batch.group, &asides(batch, &begun.received)).await?;
        if advance(&tx, &batch.group, &batch.offsets).await? == Kept::Fenced {
            return Ok(Applied::Fenced);
        }
        finish(&tx, &batch.group, &begun, began.elapsed()).await?;
        crash::point("inbox-before-commit");
        match tx.commit().await {
            Ok(()) => {}
            Err(error) if error.as_db_error().is_some_and(|db| !fault::is_fatal(db)) => {
                return Ok(Applied::Failed { at: None, failure: failure(&error) });
            }
            // It may have committed. Whoever asks the ledger again finds out.
            Err(error) => return Err(Fault::of(&error).error().maybe_applied()),
        }
        crash::point("inbox-after-commit");
        Ok(Applied::Committed(begun.received))
    }
}

impl<H: Handler> Apply for Joined<H> {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(self.run(batch))
    }
}
