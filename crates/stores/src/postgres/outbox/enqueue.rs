//! Writing messages in the caller's own transaction.

use std::ops::Deref;
use std::pin::pin;

use futures_util::future::{join, poll_immediate};
use semel_core::error::Error;
use semel_core::message::Message;
use semel_core::mutant;
use semel_core::outbox::check;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Statement, Transaction};

use super::super::connect::Param;
use super::super::fault::Fault;
use super::row::{Columns, Single};
use super::sql;

/// Writes messages in the transaction `client` is in: one statement, however many they are. They are
/// published if, and only if, it commits; for one key in the order given. (On a client that is in no
/// transaction, the statement is one of its own.)
///
/// Order between transactions holds if they insert while holding a lock of the key: a row that every
/// writer of that key updates first.
///
/// After an error of the server the transaction is aborted, as after any other failed statement.
///
/// # Cancellation
/// The statement may or may not have run: roll the transaction back.
pub async fn enqueue(client: &impl GenericClient, messages: &[Message]) -> Result<(), Error> {
    enqueue_at(client, messages, None).await
}

/// The same, by another clock than the server's. For tests.
#[doc(hidden)]
pub async fn enqueue_at(
    client: &impl GenericClient,
    messages: &[Message],
    clock: Option<i64>,
) -> Result<(), Error> {
    check(messages)?;
    if messages.is_empty() {
        return Ok(());
    }
    let sent = match only_one(messages).filter(|_| clock.is_none()) {
        Some(message) => {
            let one = Single::of(message);
            let params: Vec<Param<'_>> = one.values().into_iter().zip(Single::TYPES).collect();
            client.execute_typed(sql::ENQUEUE_ONE, &params).await
        }
        None => {
            let columns = Columns::of(messages);
            let now: Param<'_> = (&clock, Type::INT8);
            let params: Vec<Param<'_>> = columns.params().into_iter().chain([now]).collect();
            let statement = if are_due(messages) { sql::ENQUEUE_NOW } else { sql::ENQUEUE };
            client.execute_typed(statement, &params).await
        }
    };
    sent.map(drop).map_err(|error| maybe_alone(&error))
}

/// On a client that is in no transaction the statement was one of its own: if the connection broke, it may have been
/// committed.
fn maybe_alone(error: &tokio_postgres::Error) -> Error {
    Fault::of(error).with_commit().error()
}

/// The message, if it is the only one and not to be delayed.
fn only_one(messages: &[Message]) -> Option<&Message> {
    match messages {
        [message] if message.deliver_after.is_none() => Some(message),
        _ => None,
    }
}

/// No message is to be delayed.
fn are_due(messages: &[Message]) -> bool {
    messages.iter().all(|message| message.deliver_after.is_none())
}

/// The same statements, prepared on one connection: the server need not plan them each time, which takes it
/// longer than to run them. Behind a pooler that changes servers between transactions use [`enqueue`].
///
/// ```no_run
/// # async fn pay(client: &mut tokio_postgres::Client, topic: semel_core::Topic)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::Message;
/// use semel_stores::postgres::outbox::Writer;
///
/// let writer = Writer::prepare(client).await?; // once, as long as the connection lasts
///
/// let transaction = writer.begin(client).await?;
/// transaction.execute("UPDATE account SET cents = cents - 2000 WHERE name = 'alice'", &[]).await?;
/// writer.commit(transaction, &[Message::new(topic, "paid").key("alice")]).await?;
/// # Ok(())
/// # }
/// ```
pub struct Writer {
    one: Statement,
    now: Statement,
    any: Statement,
}

/// A transaction that is in no other. (The driver's own type may also stand for a savepoint, and a COMMIT would end what is
/// around it as well.)
pub struct Outermost<'a>(Transaction<'a>);

impl<'a> Outermost<'a> {
    /// The driver's own, to end it in another way.
    pub fn into_inner(self) -> Transaction<'a> {
        self.0
    }
}

impl<'a> Deref for Outermost<'a> {
    type Target = Transaction<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Writer {
    /// Prepares them on the connection of `client`, whose transactions this is for.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn prepare(client: &impl GenericClient) -> Result<Self, Error> {
        let columns: Vec<Type> = Columns::of(&[]).params().into_iter().map(|(_, kind)| kind).collect();
        let columns: Vec<Type> = columns.into_iter().chain([Type::INT8]).collect();
        let prepare = async |sql, types: &[Type]| {
            client.prepare_typed(sql, types).await.map_err(|error| Fault::of(&error).error())
        };
        Ok(Self {
            one: prepare(sql::ENQUEUE_ONE, &Single::TYPES).await?,
            now: prepare(sql::ENQUEUE_NOW, &columns).await?,
            any: prepare(sql::ENQUEUE, &columns).await?,
        })
    }

    /// The same as [`enqueue`].
    ///
    /// # Cancellation
    /// The statement may or may not have run: roll the transaction back.
    pub async fn enqueue(&self, client: &impl GenericClient, messages: &[Message]) -> Result<(), Error> {
        check(messages)?;
        if messages.is_empty() {
            return Ok(());
        }
        self.send(client, messages).await.map_err(|error| maybe_alone(&error))
    }

    /// Begins a transaction that [`commit`](Self::commit) can end.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn begin<'a>(&self, client: &'a mut Client) -> Result<Outermost<'a>, Error> {
        client.transaction().await.map(Outermost).map_err(|error| Fault::of(&error).error())
    }

    /// Writes messages and commits, in one round trip: nothing is committed unless the messages were
    /// written, nor after an error that was ignored, where COMMIT by itself would roll back and report success.
    ///
    /// An error whose [outcome is not unknown](Error::outcome_is_unknown) means that nothing happened. After the
    /// other kind the transaction may be committed: only its own tables can tell. (An operation under a key tells by
    /// itself: see [`tx`](super::super::tx).)
    ///
    /// # Cancellation
    /// Dropped, it is committed or not.
    pub async fn commit(&self, transaction: Outermost<'_>, messages: &[Message]) -> Result<(), Error> {
        check(messages)?;
        let Outermost(transaction) = transaction;
        let (written, ended) = {
            let ended = transaction.batch_execute("COMMIT");
            let mut written = pin!(self.send(&transaction, messages));
            if mutant::on("outbox-commit-overtakes") {
                let (ended, written) = join(ended, written).await;
                (written, ended)
            } else {
                // A statement is sent at its first poll. What failed then was not, and nor may the COMMIT be.
                match poll_immediate(&mut written).await {
                    Some(Err(error)) => return Err(Fault::of(&error).error()),
                    Some(Ok(())) => (Ok(()), ended.await),
                    None => join(written, ended).await,
                }
            }
        };
        // It is over, and a ROLLBACK after it would be one message too many.
        std::mem::forget(transaction);
        Fault::judge(&[None, written.as_ref().err()], ended.as_ref().err()).map_err(|fault| fault.error())
    }

    async fn send(
        &self,
        client: &impl GenericClient,
        messages: &[Message],
    ) -> Result<(), tokio_postgres::Error> {
        if let Some(message) = only_one(messages) {
            return client.execute(&self.one, &Single::of(message).values()).await.map(drop);
        }
        let columns = Columns::of(messages);
        let clock: Option<i64> = None;
        let columns = columns.params();
        let params: Vec<&(dyn ToSql + Sync)> =
            columns.iter().map(|(value, _)| *value).chain([&clock as &(dyn ToSql + Sync)]).collect();
        let statement = if are_due(messages) { &self.now } else { &self.any };
        client.execute(statement, &params).await.map(drop)
    }
}
