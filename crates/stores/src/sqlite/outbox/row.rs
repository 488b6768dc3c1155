//! A message as a row, and back.
//!
//! Reading trusts nothing: a row that no Semel can have written is an error that names it.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, Row, params};
use semel_core::clock::Timestamp;
use semel_core::message::{Header, Message, MessageId, Topic};
use semel_core::outbox::{Aside, Entry, Lane, Letter};

use crate::sqlite::error::Fault;

/// How many columns a number and its message take in every statement that reads one.
const WIDTH: usize = 13;

/// Writes a message with one of the statements that insert one.
pub(super) fn insert(
    conn: &Connection,
    sql: &str,
    lane: Lane,
    now: Timestamp,
    message: &Message,
) -> Result<(), Fault> {
    conn.prepare_cached(sql)?.execute(params![
        message.id.as_bytes().as_slice(),
        lane.0,
        now.as_micros(),
        message.topic.as_str(),
        message.key,
        lines(&message.headers),
        message.content_type,
        message.correlation,
        message.causation,
        message.trace_parent,
        message.deliver_after.map(Timestamp::as_micros),
        &*message.payload,
    ])?;
    Ok(())
}

/// Puts a message in the place of a letter; lane, key and number stay.
pub(super) fn edit(conn: &Connection, sequence: i64, message: &Message) -> Result<(), Fault> {
    conn.prepare_cached(include_str!("sql/edit.sql"))?.execute(params![
        sequence,
        message.id.as_bytes().as_slice(),
        message.topic.as_str(),
        lines(&message.headers),
        message.content_type,
        message.correlation,
        message.causation,
        message.trace_parent,
        message.deliver_after.map(Timestamp::as_micros),
        &*message.payload,
    ])?;
    Ok(())
}

/// Names have no colon and values no control characters, so lines need no escapes.
fn lines(headers: &[Header]) -> String {
    let mut text = String::new();
    for Header { name, value } in headers {
        text.extend([name, ":", value, "\n"]);
    }
    text
}

fn headers(text: &str) -> Result<Vec<Header>, String> {
    let split = |line: &str| {
        let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
        Ok(Header { name: name.to_owned(), value: value.to_owned() })
    };
    // Not `lines()`, which would take a carriage return for the end of one.
    text.split_terminator('\n').map(split).collect()
}

/// Lane and entry, from the columns every reading statement lists in the same order.
pub(super) fn entry(row: &Row<'_>) -> Result<(Lane, Entry), Fault> {
    let sequence: i64 = row.get(0)?;
    let damaged = |what: String| Fault::damaged(format!("message {sequence} of the outbox: {what}"));
    let message = Arc::new(message(row).map_err(damaged)?);
    let lane = Lane(row.get(2)?);
    Ok((lane, Entry { sequence: sequence.unsigned_abs(), message, tries: 0, behind: false }))
}

/// A letter, from the same columns and those about its being set aside.
pub(super) fn letter(row: &Row<'_>) -> Result<Letter, Fault> {
    let (lane, mut entry) = entry(row)?;
    entry.tries = row.get(WIDTH + 1)?;
    let aside = Aside::from_byte(row.get(WIDTH)?);
    let aside = aside.ok_or_else(|| Fault::damaged(format!("letter {} is of no kind", entry.sequence)))?;
    entry.behind = aside == Aside::Behind;
    Ok(Letter {
        lane,
        entry,
        aside,
        reason: row.get(WIDTH + 2)?,
        since: Timestamp::from_micros(row.get(WIDTH + 3)?),
        again_at: row.get::<_, Option<i64>>(WIDTH + 4)?.map(Timestamp::from_micros),
    })
}

fn message(row: &Row<'_>) -> Result<Message, String> {
    let text = |error: rusqlite::Error| error.to_string();
    let id: Vec<u8> = row.get(1).map_err(text)?;
    let id: [u8; 16] = id.try_into().map_err(|_| "its id has not 16 bytes")?;
    let topic = row.get_ref(4).map_err(text)?;
    let topic = Topic::parse(topic.as_str().map_err(|error| error.to_string())?);
    let lines = row.get_ref(6).map_err(text)?;
    Ok(Message {
        id: MessageId::from_bytes(id),
        topic: topic.map_err(|error| error.to_string())?,
        key: row.get(5).map_err(text)?,
        headers: headers(lines.as_str().map_err(|error| error.to_string())?)?,
        content_type: row.get(7).map_err(text)?,
        payload: Bytes::from(row.get::<_, Vec<u8>>(12).map_err(text)?),
        correlation: row.get(8).map_err(text)?,
        causation: row.get(9).map_err(text)?,
        trace_parent: row.get(10).map_err(text)?,
        deliver_after: row.get::<_, Option<i64>>(11).map_err(text)?.map(Timestamp::from_micros),
    })
}

/// A number as SQLite holds it.
pub(super) fn signed(number: u64) -> Result<i64, Fault> {
    i64::try_from(number).map_err(|_| Fault::damaged(format!("{number} is beyond what SQLite can count")))
}
