//! Writing messages in the caller's own transaction.

use semel_core::error::Error;
use semel_core::message::Message;
use semel_core::outbox::check;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::super::connect::Param;
use super::super::fault::Fault;
use super::row::Columns;
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
    let columns = Columns::of(messages);
    let now: Param<'_> = (&clock, Type::INT8);
    let params: Vec<Param<'_>> = columns.params().into_iter().chain([now]).collect();
    let is_delayed = messages.iter().any(|message| message.deliver_after.is_some());
    let statement = if is_delayed { sql::ENQUEUE } else { sql::ENQUEUE_NOW };
    client.execute_typed(statement, &params).await.map(drop).map_err(|error| Fault::of(&error).error())
}
