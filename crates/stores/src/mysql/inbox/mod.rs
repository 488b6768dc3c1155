//! The ledger of a consumer, in the consumer's own transaction.
//!
//! [`receive`] comes first: it says which messages are new, in one round trip for a whole batch. Then come the effects
//! of the new ones, then [`set_aside`] for what cannot be applied, [`advance`] where the position is kept here,
//! [`finish`], and COMMIT. Acknowledge after that, never before.
//!
//! None of these begins or ends a transaction. [`Joined`] does all of it around a [`Handler`].
//!
//! Any level of isolation will do: what is read is read under locks, and so as it is now. READ COMMITTED, which
//! [`Joined`] uses, is the better one, because MySQL then locks no gaps between rows. A transaction that loses a
//! deadlock is tried again whole.

mod aside;
mod joined;
mod receive;
mod sql;
mod store;
mod sweep;

use std::time::Duration;

use mysql_async::prelude::Queryable;
use semel_core::clock;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Kept, Offset};

pub use aside::set_aside;
pub use joined::{At, Handler, Joined, failure};
pub use receive::{Begun, receive};
pub use store::MysqlInbox;

use super::fault::Fault;
use super::say::{inline, say, tell};
use super::sql::TX_INSIDE;

/// Moves positions on. [`Kept::Fenced`]: a partition is somebody else's by now; the transaction must not commit.
///
/// # Cancellation
/// Some may have moved: roll the transaction back.
pub async fn advance(tx: &mut impl Queryable, group: &str, offsets: &[Offset]) -> Result<Kept, Error> {
    move_on(tx, group, offsets).await.map_err(|fault| fault.error())
}

async fn move_on(tx: &mut impl Queryable, group: &str, offsets: &[Offset]) -> Result<Kept, Fault> {
    for offset in offsets {
        let values = [
            offset.next.into(),
            group.into(),
            offset.topic.as_str().into(),
            offset.partition.into(),
            signed(offset.generation).into(),
            offset.first.into(),
        ];
        if tell(tx, &sql::advance(), &values).await?.changed == 0 {
            return Ok(Kept::Fenced);
        }
    }
    Ok(Kept::Kept)
}

/// Notes how long the batch took, and how far relays have come. The last statement before COMMIT.
///
/// It fails if the transaction is not the one that received the batch: MySQL rolls one back that loses a deadlock, and
/// goes on as if nothing were. Then roll back: nothing of it may commit.
///
/// # Cancellation
/// The transaction must be rolled back.
pub async fn finish(
    tx: &mut impl Queryable,
    group: &str,
    begun: &Begun,
    took: Duration,
) -> Result<(), Error> {
    note(tx, group, begun, took).await.map_err(|fault| fault.error())
}

async fn note(tx: &mut impl Queryable, group: &str, begun: &Begun, took: Duration) -> Result<(), Fault> {
    let mut text = TX_INSIDE.to_owned() + &begun.further(group);
    let values = [clock::micros(took).into(), (begun.received.len() as u64).into(), begun.number.into()];
    text.push_str(&inline(sql::FINISH, &values));
    if say(tx, &text).await?.changed != 1 {
        let text = "the transaction was rolled back after it had received its messages; nothing of it may commit, try \
                    it again";
        return Err(Error::new(Kind::Busy, text).into());
    }
    Ok(())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
