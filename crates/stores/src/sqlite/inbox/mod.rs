//! The ledger of a consumer, in the consumer's own transaction.
//!
//! [`receive`] comes first: it says which messages are new. Then come the effects of the new ones, then
//! [`set_aside`] for what cannot be applied, [`advance`] where the position is kept here, [`finish`], and
//! COMMIT. Acknowledge after that, never before.
//!
//! None of these begins or ends a transaction; it must be an IMMEDIATE one, or SQLite may refuse its first
//! write. [`Joined`] does all of it around a [`Handler`].

mod joined;
mod store;

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use semel_core::clock::{self, Timestamp};
use semel_core::error::Error;
use semel_core::inbox::{self, Arrival, Entry, Kept, Offset, Reach, Received, SetAside, State};
use semel_core::{mutant, outbox};
use sha2::{Digest, Sha256};

pub use joined::{Handler, Joined, failure};
pub use store::SqliteInbox;

use super::error::Fault;

/// A batch in the ledger, in an open transaction.
#[derive(Clone, Debug)]
pub struct Begun {
    /// What each message is, in the order of the batch.
    pub received: Vec<Received>,
    /// For [`finish`].
    number: i64,
}

/// Writes the ledger rows of a batch and says what each message is. Apply those that are
/// [`Received::New`]; set aside whatever is not that and no duplicate.
///
/// After a crash before the COMMIT: nothing was received.
pub fn receive(
    tx: &Transaction<'_>,
    group: &str,
    arrivals: &[Arrival],
    now: Timestamp,
) -> Result<Begun, Error> {
    receive_as(tx, group, arrivals, now, State::Done).map_err(|fault| told(tx, &fault))
}

fn receive_as(
    conn: &Connection,
    group: &str,
    arrivals: &[Arrival],
    now: Timestamp,
    asked: State,
) -> Result<Begun, Fault> {
    let arrivals = &*inbox::vouched(arrivals);
    let mut begin = conn.prepare_cached(include_str!("../sql/inbox_begin.sql"))?;
    let number = begin.query_row(params![group, now.as_micros(), arrivals.len() as i64], |row| row.get(0))?;
    let mut found = Vec::with_capacity(arrivals.len());
    for index in inbox::firsts(arrivals) {
        let step = Step { conn, group, number, now, asked };
        found.push((index, step.receive(&arrivals[index])?));
    }
    Ok(Begun { received: inbox::in_order(arrivals, &found, &inbox::Reached::new()), number })
}

/// One message of a batch.
struct Step<'a> {
    conn: &'a Connection,
    group: &'a str,
    number: i64,
    now: Timestamp,
    asked: State,
}

impl Step<'_> {
    fn receive(&self, arrival: &Arrival) -> Result<Received, Fault> {
        let Self { conn, group, asked, .. } = *self;
        let (source, id) = (&arrival.message.source, arrival.id.as_str());
        if let Some(letter) = arrival.letter {
            let mut take = conn.prepare_cached(include_str!("../sql/inbox_take_letter.sql"))?;
            if take.execute(params![group, signed(letter)])? == 0 {
                return Ok(Received::Duplicate);
            }
            self.insert(arrival, asked)?;
            return Ok(Received::New);
        }
        let mut look = conn.prepare_cached(include_str!("../sql/inbox_entry.sql"))?;
        let entry = look.query_row(params![group, source, id], |row| {
            Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, u8>(1)?))
        });
        if let Some((hash, state)) = entry.optional()? {
            let state = State::from_byte(state).ok_or_else(|| Fault::damaged("a state of the ledger"))?;
            let judged = inbox::judge(arrival, Entry { hash, state }, asked);
            // Also a call that began before and has no result waits while its key is parked.
            if judged == Received::New && self.is_parked(arrival)? {
                return Ok(Received::Behind);
            }
            if judged != Received::Duplicate || state != State::Aside || !self.is_rightful(arrival)? {
                return Ok(judged);
            }
        }
        let received = self.place(arrival)?;
        let kept = if received == Received::New { asked } else { State::Aside };
        self.insert(arrival, kept)?;
        Ok(received)
    }

    /// Whether a message that was kept as stale now comes from the rightful holder of its lane. Its letter is
    /// then gone, and it counts as never seen.
    fn is_rightful(&self, arrival: &Arrival) -> Result<bool, Fault> {
        let Self { conn, group, .. } = *self;
        if arrival.fence.is_none() || self.is_stale(arrival)? {
            return Ok(false);
        }
        let values = params![group, arrival.message.source, arrival.id.as_str()];
        let mut look = conn.prepare_cached(include_str!("../sql/inbox_stale_letter.sql"))?;
        let letter: Option<i64> = look.query_row(values, |row| row.get(0)).optional()?;
        let Some(letter) = letter else { return Ok(false) };
        let mut take = conn.prepare_cached(include_str!("../sql/inbox_take_letter.sql"))?;
        Ok(take.execute(params![group, letter])? == 1)
    }

    fn is_parked(&self, arrival: &Arrival) -> Result<bool, Fault> {
        let Some(key) = arrival.message.ordering_key() else { return Ok(false) };
        let mut parked = self.conn.prepare_cached(include_str!("../sql/inbox_parked.sql"))?;
        Ok(parked.query_row(params![self.group, arrival.message.source, key], |row| row.get(0))?)
    }

    fn is_stale(&self, arrival: &Arrival) -> Result<bool, Fault> {
        let (Some(key), Some(fence)) = (arrival.message.ordering_key(), arrival.fence) else {
            return Ok(false);
        };
        let reach = self.reach(&arrival.message.source, fence.lane, &key)?;
        Ok(reach.is_some_and(|reach| reach.is_stale(fence, arrival.message.number())))
    }

    fn reach(&self, source: &str, lane: u64, key: &str) -> Result<Option<Reach>, Fault> {
        let mut look = self.conn.prepare_cached(include_str!("../sql/inbox_reach.sql"))?;
        let found = look.query_row(params![self.group, source, signed(lane), key], |row| {
            let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
            let since = row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs);
            Ok(Reach { epoch: number(0)?, sequence: number(1)?, since, prior: number(3)? })
        });
        Ok(found.optional()?)
    }

    /// Where a message that was never seen stands in the order of its key.
    fn place(&self, arrival: &Arrival) -> Result<Received, Fault> {
        let Self { conn, group, .. } = *self;
        let Some(key) = arrival.message.ordering_key() else { return Ok(Received::New) };
        let source = &arrival.message.source;
        if self.is_stale(arrival)? {
            return Ok(Received::Stale);
        }
        if self.is_parked(arrival)? {
            return Ok(Received::Behind);
        }
        if let Some(fence) = arrival.fence {
            let (found, place) = (self.reach(source, fence.lane, &key)?, arrival.message.number());
            let mut reach = found.unwrap_or_else(|| Reach::of(fence, place));
            reach.further(fence, place);
            let Reach { epoch, sequence, since, prior } = reach;
            if found != Some(reach) {
                let values = params![
                    group,
                    source,
                    signed(fence.lane),
                    key,
                    signed(epoch),
                    signed(sequence),
                    since.map(signed),
                    signed(prior),
                    self.now.as_micros()
                ];
                conn.prepare_cached(include_str!("../sql/inbox_further.sql"))?.execute(values)?;
            }
        }
        Ok(Received::New)
    }

    fn insert(&self, arrival: &Arrival, state: State) -> Result<(), Fault> {
        let values = params![
            self.group,
            arrival.message.source,
            arrival.id.as_str(),
            state as u8,
            arrival.size() as i64,
            self.now.as_micros(),
            self.number,
            arrival.hash,
        ];
        self.conn.prepare_cached(include_str!("../sql/inbox_insert.sql"))?.execute(values)?;
        Ok(())
    }
}

/// Moves positions on. [`Kept::Fenced`]: a partition is somebody else's by now; the transaction must not
/// commit.
pub fn advance(tx: &Transaction<'_>, group: &str, offsets: &[Offset]) -> Result<Kept, Error> {
    advance_in(tx, group, offsets).map_err(|fault| told(tx, &fault))
}

fn advance_in(conn: &Connection, group: &str, offsets: &[Offset]) -> Result<Kept, Fault> {
    const ADVANCE: &str = include_str!("../sql/inbox_advance.sql");
    let sql = match mutant::on("inbox-offset-not-compared") {
        true => ADVANCE.replace("generation = ?4", "?4 > 0").replace("next_offset <= ?5", "?5 >= 0"),
        false => ADVANCE.to_owned(),
    };
    for offset in offsets {
        let Offset { topic, partition, generation, first, next } = offset;
        let values = params![group, topic, partition, signed(*generation), first, next];
        if conn.prepare_cached(&sql)?.execute(values)? == 0 {
            return Ok(Kept::Fenced);
        }
    }
    Ok(Kept::Kept)
}

/// Keeps messages that are not applied, whole, with the reason.
pub fn set_aside(
    tx: &Transaction<'_>,
    group: &str,
    letters: &[SetAside<'_>],
    now: Timestamp,
) -> Result<(), Error> {
    set_aside_in(tx, group, letters, now).map_err(|fault| told(tx, &fault))
}

/// Whether somebody else has applied a message since it failed: it stays applied, and gets no letter.
fn is_done(conn: &Connection, group: &str, letter: &SetAside<'_>) -> Result<bool, Fault> {
    let (Some(id), None) = (letter.id, letter.letter) else { return Ok(false) };
    let mut look = conn.prepare_cached(include_str!("../sql/inbox_entry.sql"))?;
    let entry = look.query_row(params![group, letter.message.source, id.as_str()], |row| {
        Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, u8>(1)?))
    });
    let hash: [u8; 32] = Sha256::digest(&letter.message.payload).into();
    Ok(entry.optional()? == Some((hash, State::Done as u8)))
}

fn set_aside_in(
    conn: &Connection,
    group: &str,
    letters: &[SetAside<'_>],
    now: Timestamp,
) -> Result<(), Fault> {
    for letter in letters {
        let again_at = now.after(letter.again_in).as_micros();
        let (aside, reason) = (letter.aside as u8, outbox::shortened(&letter.reason));
        if let Some(number) = letter.letter {
            let values = params![group, signed(number), aside, letter.tries, reason, again_at];
            conn.prepare_cached(include_str!("../sql/inbox_again.sql"))?.execute(values)?;
            continue;
        }
        let message = letter.message;
        let hash: [u8; 32] = Sha256::digest(&message.payload).into();
        if let Some(id) = letter.id {
            let size = message.payload.len() as i64;
            let values = params![
                group,
                message.source,
                id.as_str(),
                State::Aside as u8,
                size,
                now.as_micros(),
                0,
                hash
            ];
            conn.prepare_cached(include_str!("../sql/inbox_insert.sql"))?.execute(values)?;
        }
        conn.prepare_cached(include_str!("../sql/inbox_aside.sql"))?.execute(params![
            group,
            message.source,
            message.place,
            letter.id.map(inbox::Id::as_str),
            message.subject,
            message.ordering_key(),
            message.kept_key(),
            aside,
            letter.tries,
            now.as_micros(),
            again_at,
            inbox::headers_text(&message.headers),
            reason,
            &message.payload[..],
            hash,
        ])?;
    }
    Ok(())
}

/// Notes how long the batch took. The last statement before COMMIT.
pub fn finish(tx: &Transaction<'_>, begun: &Begun, took: Duration) -> Result<(), Error> {
    finish_in(tx, begun, took).map_err(|fault| told(tx, &fault))
}

fn finish_in(conn: &Connection, begun: &Begun, took: Duration) -> Result<(), Fault> {
    let values = [begun.number, clock::micros(took)];
    conn.prepare_cached(include_str!("../sql/inbox_finish.sql"))?.execute(values)?;
    Ok(())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn told(conn: &Connection, fault: &Fault) -> Error {
    fault.tell(std::path::Path::new(conn.path().unwrap_or("of the caller")))
}
