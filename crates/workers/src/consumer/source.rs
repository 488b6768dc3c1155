//! Where messages come from.

use std::time::Duration;

use semel_core::inbox::{Horizon, Incoming, Offset};
use semel_core::store::Pending;

/// A delivery, for as long as it is neither acknowledged nor given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt(pub u64);

/// Where a message lies, in a source whose position is kept in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The assignment it was read under.
    pub generation: u64,
    /// Its offset.
    pub offset: i64,
}

/// A message, delivered once more or for the first time.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// The message.
    pub message: Incoming,
    /// Its position, if the database keeps it.
    pub position: Option<Position>,
}

/// A broker, as one consumer of a group reads it.
///
/// A source delivers at least once and keeps the order of a key as well as its broker does. It remembers
/// nothing that correctness depends on: whatever was not acknowledged comes again.
pub trait Source: Send {
    /// How long after its first delivery a message can come again. Asked once, before the first message.
    fn horizon(&mut self) -> Pending<'_, Horizon>;

    /// The next messages, at most `limit`; none if there are none within `wait`.
    ///
    /// # Cancellation
    /// What was read and not returned comes again.
    fn next(&mut self, limit: usize, wait: Duration) -> Pending<'_, Vec<Delivery>>;

    /// Places behind everything that [`next`](Self::next) has returned, where there is no message in between; for a source whose
    /// position is kept in the database. They are kept once all of that is settled: asked before each call of `next`, it says
    /// the same until that.
    fn passed(&self) -> Vec<Offset> {
        Vec::new()
    }

    /// How often deliveries must be extended to stay the caller's; `None` if they need not be.
    fn extend_every(&self) -> Option<Duration>;

    /// Says that these are being worked on.
    fn extend<'a>(&'a mut self, receipts: &'a [Receipt]) -> Pending<'a, ()>;

    /// Says that these are settled. One that fails is delivered again, and found to be a duplicate.
    fn ack<'a>(&'a mut self, receipts: &'a [Receipt]) -> Pending<'a, ()>;

    /// Gives these back, to be delivered again after `delay`.
    fn nack<'a>(&'a mut self, receipts: &'a [Receipt], delay: Duration) -> Pending<'a, ()>;

    /// The database refused one of these positions: somebody else was given a partition. Whatever was read of
    /// all of them must be forgotten, and read again if it is still, or again, the caller's.
    fn fenced<'a>(&'a mut self, offsets: &'a [Offset]) -> Pending<'a, ()>;

    /// Gives back everything that was read and not settled, because nobody will ask for more. Not necessary:
    /// without it the broker waits until deadlines pass.
    fn close(&mut self) -> Pending<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
