//! The ledger of a consumer, in the consumer's own transaction.
//!
//! [`receive`] comes first: it says which messages are new, in one round trip for a whole batch. Then
//! come the effects of the new ones, then [`set_aside`] for what cannot be applied, [`advance`] where
//! the position is kept here, [`finish`], and COMMIT. Acknowledge after that, never before.
//!
//! None of these begins or ends a transaction. [`Joined`] does all of it around a [`Handler`].

mod joined;
mod letters;
mod store;

use std::borrow::Cow;
use std::time::Duration;

use semel_core::error::Error;
use semel_core::inbox::{self, Arrival, Entry, Kept, Offset, Reach, Reached, Received, SetAside, State};
use semel_core::{clock, mutant, outbox};
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

pub use joined::{At, Handler, Joined, failure};
pub use store::PostgresInbox;

use super::chores::no_row;
use super::connect::{Param, get};
use super::fault::Fault;

const PLAIN: &str = include_str!("../sql/inbox_plain.sql");
const RECEIVE: &str = include_str!("../sql/inbox_receive.sql");
const LOOK: &str = include_str!("../sql/inbox_look.sql");
const BATCH: &str = include_str!("../sql/inbox_batch.sql");
const ADVANCE: &str = include_str!("../sql/inbox_advance.sql");
const CLAIM: &str = include_str!("../sql/inbox_claim.sql");
const ASIDE: &str = include_str!("../sql/inbox_aside.sql");
const AGAIN: &str = include_str!("../sql/inbox_again.sql");

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
/// It waits while another transaction is about to apply the same messages, and then knows better.
/// After a crash before the COMMIT: nothing was received.
pub async fn receive(tx: &Transaction<'_>, group: &str, arrivals: &[Arrival]) -> Result<Begun, Error> {
    receive_as(tx, group, arrivals, State::Done).await.map_err(|fault| fault.error())
}

pub(super) async fn receive_as(
    tx: &Transaction<'_>,
    group: &str,
    arrivals: &[Arrival],
    state: State,
) -> Result<Begun, Fault> {
    let arrivals = &*inbox::vouched(arrivals);
    let firsts = inbox::firsts(arrivals);
    let columns = Columns::of(firsts.iter().map(|index| &arrivals[*index]));
    let is_plain = columns.letters.iter().all(Option::is_none) && !inbox::changes_hands(arrivals);
    let rows = match ask(tx, group, &columns, is_plain, state).await? {
        Told::New { number } => {
            let found: Vec<_> = firsts.iter().map(|index| (*index, Received::New)).collect();
            return Ok(Begun { received: inbox::in_order(arrivals, &found, &Reached::new()), number });
        }
        Told::Each(rows) => rows,
    };
    let mut reached = Reached::new();
    let number = rows.first().map(|row| get(row, 0)).transpose()?.unwrap_or(0);
    let mut found = Vec::with_capacity(firsts.len());
    for (index, row) in firsts.iter().zip(&rows) {
        let received = match judged(&arrivals[*index], row, state)? {
            Some(received) => received,
            None => look(tx, group, &arrivals[*index], state).await?,
        };
        // Also a call that began before and has no result waits while its key is parked.
        let is_behind = received == Received::New && arrivals[*index].letter.is_none() && get(row, 3)?;
        let received = if is_behind { Received::Behind } else { received };
        found.push((*index, received));
        // The statement for what is plain does not say it: nothing it answers for can be stale.
        if let (Some(fence), Some(key), 8..) =
            (arrivals[*index].fence, arrivals[*index].message.ordering_key(), row.len())
            && let Some(reach) = reach(row)?
        {
            reached.insert((arrivals[*index].message.source.clone(), fence.lane, key.into_owned()), reach);
        }
    }
    if rows.len() != firsts.len() {
        return Err(no_row().into());
    }
    Ok(Begun { received: inbox::in_order(arrivals, &found, &reached), number })
}

/// What the ledger says of a batch.
enum Told {
    /// All of it is new.
    New { number: i64 },
    /// A row for each message.
    Each(Vec<Row>),
}

/// Asks in the way that is quick where nothing is out of the ordinary, and only then in the one that knows every case: the first
/// writes nothing if it has no answer.
async fn ask(
    tx: &Transaction<'_>,
    group: &str,
    columns: &Columns<'_>,
    is_plain: bool,
    state: State,
) -> Result<Told, Fault> {
    let asked = state as u8 as i16;
    let params = columns.params(&group, &asked);
    if is_plain {
        let rows = tx.query_typed(PLAIN, &params[..11]).await.map_err(|error| Fault::of(&error))?;
        match &rows[..] {
            [] if mutant::on("pg-inbox-parked-passes") => return Ok(Told::New { number: 0 }),
            [] => {}
            [first, ..] if mutant::on("pg-inbox-one-for-all") && get(first, 1)? => {
                return Ok(Told::New { number: get(first, 0)? });
            }
            [only] if get(only, 1)? => return Ok(Told::New { number: get(only, 0)? }),
            _ => return Ok(Told::Each(rows)),
        }
    }
    let receive: Cow<'_, str> = match mutant::on("inbox-stale-by-delivery") {
        true => RECEIVE.replace("a.at < f.since", "false").into(),
        false if mutant::on("inbox-zombie-passes") => RECEIVE.replace("a.at < f.since", "a.at > 0").into(),
        false => RECEIVE.into(),
    };
    let rows = tx.query_typed(&receive, &params).await.map_err(|error| Fault::of(&error))?;
    Ok(Told::Each(rows))
}

/// `None`: somebody else's row appeared after the statement had begun.
fn judged(arrival: &Arrival, row: &Row, asked: State) -> Result<Option<Received>, Error> {
    let is_taken: bool = get(row, 4)?;
    if arrival.letter.is_some() {
        return Ok(Some(if is_taken { Received::New } else { Received::Duplicate }));
    }
    let (is_new, stale, behind): (bool, bool, bool) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
    if is_new || is_taken {
        return Ok(Some(match (stale, behind) {
            (true, _) => Received::Stale,
            (false, true) => Received::Behind,
            (false, false) => Received::New,
        }));
    }
    let hash: Option<&[u8]> = get(row, 5)?;
    hash.map(|hash| entry(hash, get(row, 6)?).map(|entry| inbox::judge(arrival, entry, asked))).transpose()
}

async fn look(tx: &Transaction<'_>, group: &str, arrival: &Arrival, asked: State) -> Result<Received, Fault> {
    let (source, id) = (&arrival.message.source, arrival.id.as_str());
    let params: [Param<'_>; 3] = [(&group, Type::TEXT), (source, Type::TEXT), (&id, Type::TEXT)];
    let rows = tx.query_typed(LOOK, &params).await.map_err(|error| Fault::of(&error))?;
    let row = rows.first().ok_or_else(|| {
        // It was there a moment ago and is swept by now: try the transaction again.
        Error::new(semel_core::error::Kind::Busy, "a ledger row came and went; try again")
    })?;
    let entry = entry(get(row, 0)?, get(row, 1)?)?;
    if entry.state == State::Aside && arrival.fence.is_some() {
        // It may have been kept as stale just now, and this be the rightful copy: another try can tell.
        let text = "a message was set aside while its next delivery was received; try again";
        return Err(Error::new(semel_core::error::Kind::Busy, text).into());
    }
    Ok(inbox::judge(arrival, entry, asked))
}

/// How far relays had come with the key of a message, as `inbox_receive.sql` says it.
fn reach(row: &Row) -> Result<Option<Reach>, Error> {
    let number = |at| get::<Option<i64>>(row, at).map(|number| number.map(i64::cast_unsigned));
    let (epoch, sequence, since, prior) = (number(7)?, number(8)?, number(9)?, number(10)?);
    let known = |epoch| Some(Reach { epoch, sequence: sequence?, since, prior: prior? });
    Ok(epoch.and_then(known))
}

fn entry(hash: &[u8], state: i16) -> Result<Entry, Error> {
    let damaged =
        || Error::new(semel_core::error::Kind::Damaged, "the ledger holds a row that cannot be read");
    let state = u8::try_from(state).ok().and_then(State::from_byte).ok_or_else(damaged)?;
    Ok(Entry { hash: hash.try_into().map_err(|_| damaged())?, state })
}

/// Moves positions on. [`Kept::Fenced`]: a partition is somebody else's by now; the transaction must not
/// commit.
pub async fn advance(tx: &Transaction<'_>, group: &str, offsets: &[Offset]) -> Result<Kept, Error> {
    for offset in offsets {
        let generation = i64::try_from(offset.generation).unwrap_or(i64::MAX);
        let params: [Param<'_>; 6] = [
            (&group, Type::TEXT),
            (&offset.topic, Type::TEXT),
            (&offset.partition, Type::INT4),
            (&generation, Type::INT8),
            (&offset.first, Type::INT8),
            (&offset.next, Type::INT8),
        ];
        let sql = match mutant::on("inbox-offset-not-compared") {
            true => ADVANCE.replace("generation = $4", "$4 > 0").replace("next_offset <= $5", "$5 >= 0"),
            false => ADVANCE.to_owned(),
        };
        if tx.query_typed(&sql, &params).await.map_err(|error| Fault::of(&error).error())?.is_empty() {
            return Ok(Kept::Fenced);
        }
    }
    Ok(Kept::Kept)
}

/// Keeps messages that are not applied, whole, with the reason.
pub async fn set_aside(tx: &Transaction<'_>, group: &str, letters: &[SetAside<'_>]) -> Result<(), Error> {
    for letter in letters {
        put_aside(tx, group, letter).await.map_err(|fault| fault.error())?;
    }
    Ok(())
}

/// Keeps messages that failed in a transaction that is gone. One that somebody else has applied since stays
/// applied, and gets no letter.
pub(super) async fn set_aside_later(
    tx: &Transaction<'_>,
    group: &str,
    letters: &[SetAside<'_>],
) -> Result<(), Error> {
    for letter in letters {
        if let (Some(id), None) = (letter.id, letter.letter)
            && is_done(tx, group, letter.message, id).await.map_err(|fault| fault.error())?
        {
            continue;
        }
        put_aside(tx, group, letter).await.map_err(|fault| fault.error())?;
    }
    Ok(())
}

async fn is_done(
    tx: &Transaction<'_>,
    group: &str,
    message: &inbox::Incoming,
    id: &inbox::Id,
) -> Result<bool, Fault> {
    let (id, hash) = (id.as_str(), Sha256::digest(&message.payload));
    let size = i32::try_from(message.payload.len()).unwrap_or(i32::MAX);
    let params: [Param<'_>; 5] = [
        (&group, Type::TEXT),
        (&message.source, Type::TEXT),
        (&id, Type::TEXT),
        (&size, Type::INT4),
        (&&hash[..], Type::BYTEA),
    ];
    let rows = tx.query_typed(CLAIM, &params).await.map_err(|error| Fault::of(&error))?;
    Ok(get(rows.first().ok_or_else(no_row)?, 0)?)
}

async fn put_aside(tx: &Transaction<'_>, group: &str, letter: &SetAside<'_>) -> Result<(), Fault> {
    let (aside, tries) = (letter.aside as u8 as i16, i32::try_from(letter.tries).unwrap_or(i32::MAX));
    let reason = outbox::shortened(&letter.reason).replace('\0', " ");
    let wait = clock::micros(letter.again_in);
    if let Some(number) = letter.letter {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let params: [Param<'_>; 6] = [
            (&group, Type::TEXT),
            (&number, Type::INT8),
            (&aside, Type::INT2),
            (&tries, Type::INT4),
            (&reason, Type::TEXT),
            (&wait, Type::INT8),
        ];
        return tx.query_typed(AGAIN, &params).await.map(drop).map_err(|error| Fault::of(&error));
    }
    let message = letter.message;
    let (id, key) = (letter.id.map(inbox::Id::as_str), message.ordering_key());
    let own_key = message.kept_key();
    let headers = inbox::headers_text(&message.headers);
    let (payload, hash) = (&message.payload[..], Sha256::digest(&message.payload));
    let params: [Param<'_>; 14] = [
        (&group, Type::TEXT),
        (&message.source, Type::TEXT),
        (&message.place, Type::TEXT),
        (&id, Type::TEXT),
        (&message.subject, Type::TEXT),
        (&key, Type::TEXT),
        (&own_key, Type::TEXT),
        (&headers, Type::TEXT),
        (&aside, Type::INT2),
        (&tries, Type::INT4),
        (&reason, Type::TEXT),
        (&payload, Type::BYTEA),
        (&&hash[..], Type::BYTEA),
        (&wait, Type::INT8),
    ];
    tx.query_typed(ASIDE, &params).await.map(drop).map_err(|error| Fault::of(&error))
}

/// Notes how long the batch took. The last statement before COMMIT.
pub async fn finish(tx: &Transaction<'_>, group: &str, begun: &Begun, took: Duration) -> Result<(), Error> {
    let (took, messages) = (clock::micros(took), i32::try_from(begun.received.len()).unwrap_or(i32::MAX));
    let params: [Param<'_>; 4] =
        [(&begun.number, Type::INT8), (&took, Type::INT8), (&messages, Type::INT4), (&group, Type::TEXT)];
    tx.query_typed(BATCH, &params).await.map(drop).map_err(|error| Fault::of(&error).error())
}

/// A batch, as `inbox_receive.sql` takes it, and all but the last as `inbox_plain.sql` does.
#[derive(Default)]
struct Columns<'a> {
    sources: Vec<&'a str>,
    ids: Vec<&'a str>,
    hashes: Vec<&'a [u8]>,
    sizes: Vec<i32>,
    keys: Vec<Option<Cow<'a, str>>>,
    lanes: Vec<Option<i64>>,
    epochs: Vec<Option<i64>>,
    sequences: Vec<Option<i64>>,
    places: Vec<Option<i64>>,
    letters: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn of(arrivals: impl Iterator<Item = &'a Arrival>) -> Self {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut columns = Self::default();
        for arrival in arrivals {
            columns.sources.push(&arrival.message.source);
            columns.ids.push(arrival.id.as_str());
            columns.hashes.push(&arrival.hash);
            columns.sizes.push(i32::try_from(arrival.size()).unwrap_or(i32::MAX));
            columns.keys.push(arrival.message.ordering_key());
            columns.lanes.push(arrival.fence.map(|fence| number(fence.lane)));
            columns.epochs.push(arrival.fence.map(|fence| number(fence.epoch)));
            columns.sequences.push(arrival.fence.map(|fence| number(fence.sequence)));
            columns.places.push(arrival.message.number().map(number));
            columns.letters.push(arrival.letter.map(number));
        }
        columns
    }

    fn params<'p>(&'p self, group: &'p &str, asked: &'p i16) -> [Param<'p>; 12] {
        [
            (group, Type::TEXT),
            (asked, Type::INT2),
            (&self.sources, Type::TEXT_ARRAY),
            (&self.ids, Type::TEXT_ARRAY),
            (&self.hashes, Type::BYTEA_ARRAY),
            (&self.sizes, Type::INT4_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.lanes, Type::INT8_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.sequences, Type::INT8_ARRAY),
            (&self.places, Type::INT8_ARRAY),
            (&self.letters, Type::INT8_ARRAY),
        ]
    }
}
