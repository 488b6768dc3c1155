//! A handler's statements and the ledger in one transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::{Transaction, TxOpts};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Applied, Apply, Arrival, Batch, Failure, Kept, Received, State, asides};
use semel_core::store::Pending;
use tokio::time::timeout;

use super::aside::put_all;
use super::receive::{View, receive_as};
use super::store::{WORK_MAX, in_time, settings};
use super::{MysqlInbox, move_on, note};
use crate::crash;
use crate::mysql::fault::{self, Fault};
use crate::mysql::pool::Tried;

/// What a service does with a message, in the transaction its ledger row is in.
///
/// Everything written through `tx`, messages for an outbox included, commits with the ledger row or not at all. It must
/// not commit, nor use a statement that does so by itself (DDL), and must not do anything that a rollback does not
/// undo: it is run again. The transaction is at READ COMMITTED, in the store's database.
pub trait Handler: Send + Sync + 'static {
    /// Applies one message.
    fn apply(
        &self,
        tx: &mut Transaction<'_>,
        arrival: &Arrival,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Applies all new messages of a batch, in their order; for handlers that can do so in fewer statements.
    fn apply_all(
        &self,
        tx: &mut Transaction<'_>,
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
pub fn failure(error: &mysql_async::Error) -> Failure {
    let reason = fault::chain(error);
    match error {
        mysql_async::Error::Server(server)
            if server.state.starts_with("22") || server.state.starts_with("23") =>
        {
            Failure::Never(reason)
        }
        _ => Failure::Later(reason),
    }
}

/// A handler and the ledger, in one transaction per batch.
pub struct Joined<H> {
    inbox: Arc<MysqlInbox>,
    handler: H,
    idle_max: Duration,
}

impl<H: Handler> Joined<H> {
    /// Joins them. A connection whose process stands still for a minute is ended by the server.
    pub fn new(inbox: Arc<MysqlInbox>, handler: H) -> Self {
        Self { inbox, handler, idle_max: Duration::from_secs(60) }
    }

    /// How long the handler may go without a statement before the server ends the connection, in whole seconds: so
    /// long a consumer that was stopped can keep others from its messages.
    pub fn idle_max(mut self, idle_max: Duration) -> Self {
        self.idle_max = idle_max;
        self
    }

    async fn run(&self, batch: &Batch) -> Result<Applied, Error> {
        self.inbox.ready().await?;
        let mut tries = self.inbox.tries();
        loop {
            let mut link = tries.link().await?;
            let tried = match link.live().conn().start_transaction(TxOpts::default()).await {
                Ok(tx) => self.inside(tx, batch).await.map(Tried::Answer),
                Err(error) => Err(Fault::of(&error)),
            };
            if let Some(applied) = tries.judge(link, tried).await? {
                return Ok(applied);
            }
        }
    }

    async fn inside(&self, mut tx: Transaction<'_>, batch: &Batch) -> Result<Applied, Fault> {
        match self.work(&mut tx, batch).await {
            Ok(Applied::Committed(received)) => {
                crash::point("inbox-before-commit");
                // It may have committed all the same: whoever asks the ledger again finds out.
                match timeout(WORK_MAX, tx.commit()).await {
                    Ok(done) => done.map_err(|error| Fault::of_commit(&error))?,
                    Err(_) => return Err(Fault::timed_out(true)),
                }
                crash::point("inbox-after-commit");
                Ok(Applied::Committed(received))
            }
            Ok(other) => {
                // Nothing may be left open when the connection goes to the next, whatever broke it.
                tx.rollback().await.map_err(|error| Fault::of(&error))?;
                Ok(other)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Everything but the end.
    async fn work(&self, tx: &mut Transaction<'_>, batch: &Batch) -> Result<Applied, Fault> {
        let began = Instant::now();
        let settings = settings(self.idle_max);
        let view = View::Ours(&settings);
        let begun =
            in_time(WORK_MAX, receive_as(tx, &batch.group, &batch.arrivals, State::Done, view)).await?;
        let new: Vec<usize> =
            (0..batch.arrivals.len()).filter(|index| begun.received[*index] == Received::New).collect();
        let arrivals: Vec<&Arrival> = new.iter().map(|index| &batch.arrivals[*index]).collect();
        if !arrivals.is_empty()
            && let Err(At { index, failure }) = self.handler.apply_all(tx, &arrivals).await
        {
            if tx.is_disconnected() {
                let text = "the connection to MySQL broke while a message was applied";
                return Err(Error::new(Kind::Unreachable, text).into());
            }
            return Ok(Applied::Failed { at: index.and_then(|index| new.get(index).copied()), failure });
        }
        let finish = async {
            put_all(tx, &batch.group, &asides(batch, &begun.received)).await?;
            if move_on(tx, &batch.group, &batch.offsets).await? == Kept::Fenced {
                return Ok(Applied::Fenced);
            }
            note(tx, &batch.group, &begun, began.elapsed()).await?;
            Ok(Applied::Committed(begun.received))
        };
        in_time(WORK_MAX, finish).await
    }
}

impl<H: Handler> Apply for Joined<H> {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(self.run(batch))
    }
}
