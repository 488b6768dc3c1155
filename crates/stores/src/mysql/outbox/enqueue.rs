//! Writing messages in the caller's own transaction.

use mysql_async::Value;
use mysql_async::prelude::Queryable;
use semel_core::error::{Error, Kind};
use semel_core::message::Message;
use semel_core::{mutant, outbox};

use super::super::fault::Fault;
use super::super::sql::each;
use super::{row, sql};

/// Rows of one statement. Few numbers, because each is a statement of its own that the server prepares.
const ROWS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];
/// Bytes of payloads in one statement, unless a single one has more: far less than any server's
/// `max_allowed_packet`.
const BYTES_MAX: usize = 1 << 20;

/// Writes messages in the transaction `client` is in: they are published if, and only if, it commits; for one
/// key in the order given. A few statements, however many they are.
///
/// `client` is a [`Conn`](mysql_async::Conn) or a [`Transaction`](mysql_async::Transaction) to the database
/// of a store, in which a [`MysqlStore`](crate::mysql::MysqlStore) or a
/// [`MysqlOutbox`](super::MysqlOutbox) once made the tables. Outside of a transaction each statement is one of
/// its own.
///
/// Order between transactions holds if they write while holding a lock of the key: a row that every writer of
/// that key updates first.
///
/// A message that could not be published later is refused before anything is written. After any other error
/// roll back: MySQL undoes only the statement that failed, and some messages may be there.
///
/// # Cancellation
/// Some of the statements may have run: roll the transaction back.
pub async fn enqueue(client: &mut impl Queryable, messages: &[Message]) -> Result<(), Error> {
    enqueue_at(client, messages, None).await
}

/// The same, by another clock than the server's. For tests.
#[doc(hidden)]
pub async fn enqueue_at(
    client: &mut impl Queryable,
    messages: &[Message],
    clock: Option<i64>,
) -> Result<(), Error> {
    if !mutant::on("my-outbox-unchecked") {
        outbox::check(messages)?;
    }
    for (statement, values) in statements(messages, clock) {
        let written = client.exec_drop(statement, values).await;
        written.map_err(|error| Fault::of(&error).error())?;
    }
    if mutant::on("my-outbox-commits-by-itself") {
        client
            .query_drop("COMMIT")
            .await
            .map_err(|error| Error::new(Kind::Unreachable, error.to_string()))?;
        client
            .query_drop("START TRANSACTION")
            .await
            .map_err(|error| Error::new(Kind::Unreachable, error.to_string()))?;
    }
    Ok(())
}

/// What writes messages: statements, each with its values.
pub(in super::super) fn statements(messages: &[Message], clock: Option<i64>) -> Vec<(String, Vec<Value>)> {
    let is_delayed =
        |message: &Message| message.deliver_after.is_some() && !mutant::on("my-outbox-never-delays");
    let (delayed, now): (Vec<&Message>, Vec<&Message>) =
        messages.iter().partition(|message| is_delayed(message));
    let mut all = Vec::new();
    for (statement, mut rest) in [(sql::ENQUEUE, &now[..]), (sql::ENQUEUE_DELAYED, &delayed[..])] {
        while !rest.is_empty() {
            let (some, others) = rest.split_at(rows(rest));
            let mut values: Vec<Value> = Vec::new();
            some.iter().for_each(|message| row::values(message, clock, &mut values));
            all.push((each(statement, some.len()), values));
            rest = others;
        }
    }
    all
}

/// How many of these go into the next statement; at least one.
fn rows(messages: &[&Message]) -> usize {
    let mut bytes = 0;
    let fits = messages.iter().take(ROWS[0]).take_while(|message| {
        bytes += message.payload.len();
        bytes <= BYTES_MAX
    });
    let fits = fits.count();
    ROWS.into_iter().find(|rows| *rows <= fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use semel_core::message::Topic;

    use super::*;

    #[test]
    fn statements_are_of_few_sizes_and_never_too_large() {
        let message = |bytes: usize| Message::new(Topic::parse("t").unwrap(), vec![0; bytes]);
        let small: Vec<Message> = (0..200).map(|_| message(10)).collect();
        let small: Vec<&Message> = small.iter().collect();
        assert_eq!((rows(&small), rows(&small[..10]), rows(&small[..1])), (64, 8, 1));
        let (large, half) = (message(BYTES_MAX + 1), message(BYTES_MAX / 2));
        assert_eq!((rows(&[&large, &large]), rows(&[&half, &half, &half])), (1, 2));
    }
}
