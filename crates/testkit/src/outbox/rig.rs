//! What the suite needs of a database that keeps an outbox.

use std::sync::Arc;

use semel_core::message::PAYLOAD_BYTES_MAX;
use semel_core::{Error, Message, Outbox, Timestamp};

use crate::BoxFuture;

/// Makes a fresh rig: a new, empty database nobody else uses, whose outbox has at least two lanes. Every
/// case asks for its own, and cases run side by side.
pub type Maker = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Rig>> + Send + Sync>;

/// One outbox under test, and what an application would do to it.
///
/// What is not said here is said by [`Outbox`]. A rig owns its database; dropping the rig removes it.
pub trait Rig: Send + Sync + 'static {
    /// What runs, for people and the ledger: "sqlite", "postgres via pgbouncer".
    fn engine(&self) -> &'static str;

    /// The handle in use. After [`reopen`](Self::reopen) it is another one; cases ask again.
    fn outbox(&self) -> Arc<dyn Outbox>;

    /// The time on the store's clock.
    fn now(&self) -> BoxFuture<'_, Timestamp>;

    /// Moves the store's clock forward by so many microseconds, at once and for every handle of this rig,
    /// also those opened later. Nothing sleeps. The clock may also run by itself: cases keep a margin of a
    /// minute.
    fn shift_clock(&self, micros: i64);

    /// Begins a transaction of an application, on a connection of its own, and writes these messages in
    /// it, in their order. It stays open.
    ///
    /// Where writers exclude each other this waits for the one that is open.
    fn begin(&self, messages: Vec<Message>) -> BoxFuture<'_, Result<Box<dyn Open>, Error>>;

    /// Whether two transactions can have written messages and both be open.
    fn writers_overlap(&self) -> bool {
        true
    }

    /// Largest payload this database takes, if that is less than a message may have.
    fn payload_bytes_max(&self) -> usize {
        PAYLOAD_BYTES_MAX
    }

    /// Closes the outbox and opens it again, as a restart of the process would. Nothing that was answered
    /// may be lost. An outbox that lives in this process keeps its handle.
    fn reopen(&self) -> BoxFuture<'_, ()>;

    /// Makes the next save of any cursor commit and answer with an error, as a connection would that breaks
    /// between the two. `false`: this rig has no way to.
    fn lose_answer_of_next_save(&self) -> bool {
        false
    }
}

/// An open transaction of an application.
pub trait Open: Send {
    /// Writes more messages in it.
    fn write(&mut self, messages: Vec<Message>) -> BoxFuture<'_, Result<(), Error>>;

    /// Commits. When this is answered, the messages are there.
    fn commit(self: Box<Self>) -> BoxFuture<'static, ()>;

    /// Rolls back. When this is answered, they never will be.
    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()>;
}
