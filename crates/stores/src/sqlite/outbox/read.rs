//! What is read of an outbox: batches for a relay, lists for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::clock::Timestamp;
use semel_core::lease::Nonce;
use semel_core::message::{Message, MessageId, Topic};
use semel_core::mutant;
use semel_core::outbox::{Aside, Backlog, Entry, Found, Lane, LaneStatus, Letter, Overview};

use super::row;
use crate::sqlite::error::Fault;

/// A batch ends when its payloads have so many bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// Rows looked at when counting.
const COUNT_MAX: u32 = 100_000;

/// Rows of a list, whatever the caller allows.
pub(super) const LIST_MAX: u32 = 1000;

/// An entry of a batch, and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) entry: Entry,
    pub(super) source: Source,
}

/// Where an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Among those that wait.
    Outbox,
    /// Among those set aside.
    Aside,
}

/// What a look into a lane found.
pub(super) struct Filled {
    pub(super) items: Vec<Item>,
    /// Everything of the lane up to here was read.
    pub(super) scanned: u64,
    /// When a letter may go that cannot now.
    pub(super) ready_next: Option<Timestamp>,
}

/// The next of a lane: letters that may go, then what waits above `scanned`. Letters get at most half of the
/// room, so that neither holds the other up.
pub(super) fn fill(
    conn: &Connection,
    lane: Lane,
    scanned: u64,
    room: usize,
    letters: bool,
    now: Timestamp,
) -> Result<Filled, Fault> {
    let mut items = match letters {
        true => ready(conn, lane, room.div_ceil(2), now)?,
        false => Vec::new(),
    };
    let scanned = waiting(conn, lane, scanned, room - items.len(), &mut items)?;
    let ready_next: Option<i64> =
        conn.prepare_cached(include_str!("sql/ready_next.sql"))?.query_row([lane.0], |row| row.get(0))?;
    Ok(Filled { items, scanned, ready_next: ready_next.map(Timestamp::from_micros) })
}

/// Letters that may go, each key's in order and without a gap.
fn ready(conn: &Connection, lane: Lane, room: usize, now: Timestamp) -> Result<Vec<Item>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/ready_keys.sql"))?;
    let keys = statement.query_map(params![lane.0, now.as_micros(), room as i64], |row| row.get(0))?;
    let keys: Vec<String> = keys.collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    let mut bytes = 0;
    for key in keys {
        if found.len() >= room || bytes > BATCH_BYTES_MAX {
            break;
        }
        let mut statement = conn.prepare_cached(include_str!("sql/letters_of_key.sql"))?;
        let letters =
            statement.query_map(params![key, (room - found.len()) as i64], |row| Ok(row::letter(row)))?;
        for letter in letters {
            let letter = letter??;
            let may_go = match letter.aside {
                Aside::Behind => true,
                Aside::Later => letter.again_at.is_none_or(|at| at <= now),
                Aside::Dead => mutant::on("sqlite-outbox-dead-goes-on"),
            };
            if !may_go || bytes > BATCH_BYTES_MAX {
                break;
            }
            bytes += letter.entry.message.payload.len();
            found.push(item(letter));
        }
    }
    let mut statement = conn.prepare_cached(include_str!("sql/ready_letters.sql"))?;
    let values = params![lane.0, now.as_micros(), room.saturating_sub(found.len()) as i64];
    for letter in statement.query_map(values, |row| Ok(row::letter(row)))? {
        found.push(item(letter??));
    }
    Ok(found)
}

fn item(letter: Letter) -> Item {
    let entry = Entry { behind: false, ..letter.entry };
    Item { entry, source: Source::Aside }
}

/// What waits above a number; how far that reaches.
fn waiting(
    conn: &Connection,
    lane: Lane,
    above: u64,
    room: usize,
    items: &mut Vec<Item>,
) -> Result<u64, Fault> {
    let last: Option<i64> =
        conn.prepare_cached(include_str!("sql/last.sql"))?.query_row([], |row| row.get(0))?;
    let mut parked = Parked::new(conn)?;
    let (mut scanned, mut bytes, mut count) = (above, 0, 0);
    let mut statement = conn.prepare_cached(include_str!("sql/read.sql"))?;
    let mut rows = statement.query(params![row::signed(above)?, lane.0, room as i64])?;
    while let Some(row) = rows.next()? {
        let (_, mut entry) = row::entry(row)?;
        entry.behind = parked.has(entry.message.key.as_deref())?;
        scanned = entry.sequence;
        bytes += entry.message.payload.len();
        count += 1;
        items.push(Item { entry, source: Source::Outbox });
        if bytes > BATCH_BYTES_MAX {
            return Ok(scanned);
        }
    }
    // Others' messages need not be walked through again: nothing can come below the last that is there.
    let whole = count < room || mutant::on("sqlite-outbox-skips-ahead");
    Ok(if whole { scanned.max(last.unwrap_or(0).unsigned_abs()) } else { scanned })
}

/// Which keys wait for something set aside.
struct Parked<'a> {
    conn: &'a Connection,
    any: bool,
    known: BTreeMap<String, bool>,
}

impl<'a> Parked<'a> {
    fn new(conn: &'a Connection) -> Result<Self, Fault> {
        let any = conn.prepare_cached(include_str!("sql/any_parked.sql"))?.query_row([], |row| row.get(0))?;
        let any = any && !mutant::on("sqlite-outbox-key-goes-on");
        Ok(Self { conn, any, known: BTreeMap::new() })
    }

    fn has(&mut self, key: Option<&str>) -> Result<bool, Fault> {
        let Some(key) = key.filter(|_| self.any) else { return Ok(false) };
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        let mut statement = self.conn.prepare_cached(include_str!("sql/is_parked.sql"))?;
        let is: bool = statement.query_row([key], |row| row.get(0))?;
        self.known.insert(key.to_owned(), is);
        Ok(is)
    }
}

pub(super) fn list(
    conn: &Connection,
    topic: Option<&Topic>,
    after: u64,
    limit: u32,
) -> Result<Vec<(Lane, Entry)>, Fault> {
    let mut parked = Parked::new(conn)?;
    let mut statement = conn.prepare_cached(include_str!("sql/list.sql"))?;
    let values = params![row::signed(after)?, topic.map(Topic::as_str), limit.min(LIST_MAX)];
    let rows = statement.query_map(values, |row| Ok(row::entry(row)))?;
    let mut found: Vec<(Lane, Entry)> = rows.map(|row| row?).collect::<Result<_, _>>()?;
    for (_, entry) in &mut found {
        entry.behind = parked.has(entry.message.key.as_deref())?;
    }
    Ok(found)
}

pub(super) fn letters(
    conn: &Connection,
    only: Option<Aside>,
    after: u64,
    limit: u32,
) -> Result<Vec<Letter>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/letters.sql"))?;
    let values = params![row::signed(after)?, only.map(|only| only as u8), limit.min(LIST_MAX)];
    let rows = statement.query_map(values, |row| Ok(row::letter(row)))?;
    rows.map(|row| row?).collect()
}

pub(super) fn letter(conn: &Connection, id: MessageId) -> Result<Option<Letter>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/find_letter.sql"))?;
    statement.query_row([id.as_bytes().as_slice()], |row| Ok(row::letter(row))).optional()?.transpose()
}

pub(super) fn find(conn: &Connection, id: MessageId) -> Result<Option<Found>, Fault> {
    if let Some(letter) = letter(conn, id)? {
        return Ok(Some(Found::Aside(letter)));
    }
    let bytes = [id.as_bytes().as_slice()];
    let mut statement = conn.prepare_cached(include_str!("sql/find_delayed.sql"))?;
    let delayed = statement.query_row(bytes, |row| Ok(row::entry(row))).optional()?.transpose()?;
    if let Some((_, Entry { message, .. })) = delayed {
        return Ok(Some(Found::Delayed(Arc::unwrap_or_clone(message))));
    }
    let mut statement = conn.prepare_cached(include_str!("sql/find_waiting.sql"))?;
    let waiting = statement.query_row(bytes, |row| Ok(row::entry(row))).optional()?.transpose()?;
    let Some((lane, mut entry)) = waiting else { return Ok(None) };
    entry.behind = Parked::new(conn)?.has(entry.message.key.as_deref())?;
    Ok(Some(Found::Waiting(lane, entry)))
}

pub(super) fn overview(conn: &Connection, now: Timestamp) -> Result<Overview, Fault> {
    let mut backlog: BTreeMap<(Topic, Lane), Backlog> = BTreeMap::new();
    let (mut waiting, mut aside) = (0, 0);
    let number = |row: &rusqlite::Row<'_>, at| row.get::<_, u32>(at).map(u64::from);
    let mut statement = conn.prepare_cached(include_str!("sql/backlog.sql"))?;
    let mut rows = statement.query([COUNT_MAX])?;
    while let Some(row) = rows.next()? {
        let line = line(&mut backlog, row)?;
        line.waiting = number(row, 2)?;
        line.oldest = Some(now.since(Timestamp::from_micros(row.get(3)?)));
        waiting += line.waiting;
    }
    let mut statement = conn.prepare_cached(include_str!("sql/letters_count.sql"))?;
    let mut rows = statement.query([COUNT_MAX])?;
    while let Some(row) = rows.next()? {
        let line = line(&mut backlog, row)?;
        (line.aside, line.dead) = (number(row, 2)?, number(row, 3)?);
        aside += line.aside + line.dead;
    }
    let delayed = conn
        .prepare_cached(include_str!("sql/delayed_count.sql"))?
        .query_row([COUNT_MAX], |row| number(row, 0))?;
    Ok(Overview {
        lanes: lanes(conn, now)?,
        backlog: backlog.into_values().collect(),
        delayed,
        more: [waiting, aside, delayed].contains(&u64::from(COUNT_MAX)),
        stopped: None,
    })
}

fn line<'a>(
    backlog: &'a mut BTreeMap<(Topic, Lane), Backlog>,
    row: &rusqlite::Row<'_>,
) -> Result<&'a mut Backlog, Fault> {
    let text: String = row.get(0)?;
    let topic =
        Topic::parse(&text).map_err(|error| Fault::damaged(format!("the topic {text:?}: {error}")))?;
    let lane = Lane(row.get(1)?);
    let empty = Backlog { topic: topic.clone(), lane, waiting: 0, oldest: None, aside: 0, dead: 0 };
    Ok(backlog.entry((topic, lane)).or_insert(empty))
}

fn lanes(conn: &Connection, now: Timestamp) -> Result<Vec<LaneStatus>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/all_lanes.sql"))?;
    let rows = statement.query_map([], |row| {
        let until = Timestamp::from_micros(row.get(3)?);
        let holder: Option<[u8; 16]> = row.get(2)?;
        let holder = holder.filter(|_| until > now).map(Nonce::from_bytes);
        let lease_until = holder.map(|_| until);
        let epoch = row.get::<_, i64>(1)?.unsigned_abs();
        Ok(LaneStatus { lane: Lane(row.get(0)?), epoch, holder, lease_until })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Keys of a batch, for what has to be looked at after it.
pub(super) fn keys<'a>(messages: impl Iterator<Item = &'a Message>) -> BTreeSet<&'a str> {
    messages.filter_map(|message| message.key.as_deref()).collect()
}
