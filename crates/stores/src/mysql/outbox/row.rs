//! A message as a row, and back.
//!
//! Reading trusts nothing: a row that no Semel can have written is an error that names it.

use std::sync::Arc;

use bytes::Bytes;
use mysql_async::{Row, Value};
use semel_core::clock::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::message::{Header, Message, MessageId, Topic};
use semel_core::outbox::{Aside, Entry, Lane, Letter};

use super::super::row::{int, maybe_bytes, maybe_int, text, time};

/// How many columns a number and its message take in every statement that reads one.
const WIDTH: usize = 13;
const PAYLOAD: usize = 12;

/// The values of a message, in the order of `enqueue.sql`.
pub(super) fn values(message: &Message, clock: Option<i64>, out: &mut Vec<Value>) {
    let key = message.key.as_deref().map(str::as_bytes);
    out.extend([
        key.unwrap_or(message.id.as_bytes()).into(),
        message.id.as_bytes()[..].into(),
        clock.into(),
        message.topic.as_str().into(),
        key.into(),
        lines(&message.headers).into(),
        message.content_type.as_str().into(),
        message.correlation.as_deref().into(),
        message.causation.as_deref().into(),
        message.trace_parent.as_deref().into(),
        message.deliver_after.map(Timestamp::as_micros).into(),
        message.payload[..].into(),
    ]);
}

/// The values that put a message in the place of a letter, in the order of `edit.sql`.
pub(super) fn edit(message: &Message, sequence: i64) -> Vec<Value> {
    vec![
        message.id.as_bytes()[..].into(),
        message.topic.as_str().into(),
        lines(&message.headers).into(),
        message.content_type.as_str().into(),
        message.correlation.as_deref().into(),
        message.causation.as_deref().into(),
        message.trace_parent.as_deref().into(),
        message.deliver_after.map(Timestamp::as_micros).into(),
        message.payload[..].into(),
        sequence.into(),
    ]
}

/// Names have no colon and values no control characters, so lines need no escapes.
fn lines(headers: &[Header]) -> String {
    let mut text = String::new();
    for Header { name, value } in headers {
        text.extend([name, ":", value, "\n"]);
    }
    text
}

fn headers(text: &str) -> Option<Vec<Header>> {
    let split = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some(Header { name: name.to_owned(), value: value.to_owned() })
    };
    // Not `lines()`, which would take a carriage return for the end of one.
    text.split_terminator('\n').map(split).collect()
}

/// A message that waits, and whether an earlier one of its key is set aside.
pub(super) fn waiting(mut row: Row) -> Result<(Lane, Entry), Error> {
    let behind = int(&row, WIDTH)? != 0;
    let (lane, entry) = entry(&mut row)?;
    Ok((lane, Entry { behind, ..entry }))
}

/// A message whose time is to come.
pub(super) fn delayed(mut row: Row) -> Result<Message, Error> {
    Ok(Arc::unwrap_or_clone(entry(&mut row)?.1.message))
}

pub(super) fn letter(mut row: Row) -> Result<Letter, Error> {
    let damaged = |what| damaged(number(&row, 0).unwrap_or(0), what);
    let aside = u8::try_from(int(&row, WIDTH)?).ok().and_then(Aside::from_byte);
    let aside = aside.ok_or_else(|| damaged("the kind"))?;
    let tries = u32::try_from(int(&row, WIDTH + 1)?).map_err(|_| damaged("the number of tries"))?;
    let reason = text(&row, WIDTH + 2)?.unwrap_or_default().to_owned();
    let since = time(&row, WIDTH + 3)?;
    let again_at = maybe_int(&row, WIDTH + 4)?.map(Timestamp::from_micros);
    let (lane, entry) = entry(&mut row)?;
    let entry = Entry { tries, behind: aside == Aside::Behind, ..entry };
    Ok(Letter { lane, entry, aside, reason, since, again_at })
}

fn entry(row: &mut Row) -> Result<(Lane, Entry), Error> {
    let sequence = number(row, 0)?;
    let damaged = |what| damaged(sequence, what);
    let lane = lane(row, 1)?;
    let id = maybe_bytes(row, 2)?.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| damaged("the id"))?;
    let topic = text(row, 4)?.unwrap_or_default();
    let topic = Topic::parse(topic).map_err(|error| damaged("the topic").because(error))?;
    let headers = headers(text(row, 6)?.unwrap_or_default()).ok_or_else(|| damaged("the headers"))?;
    let owned = |at| text(row, at).map(|text| text.map(str::to_owned));
    let (key, content_type) = (owned(5)?, owned(7)?.unwrap_or_default());
    let (correlation, causation, trace_parent) = (owned(8)?, owned(9)?, owned(10)?);
    let deliver_after = maybe_int(row, 11)?.map(Timestamp::from_micros);
    // Taken and not copied: payloads are most of what is read.
    let payload = match row.take::<Value, _>(PAYLOAD) {
        Some(Value::Bytes(payload)) => Bytes::from(payload),
        _ => return Err(damaged("the payload")),
    };
    let id = MessageId::from_bytes(id);
    let message = Message {
        id,
        topic,
        key,
        headers,
        content_type,
        payload,
        correlation,
        causation,
        trace_parent,
        deliver_after,
    };
    Ok((lane, Entry { sequence, message: Arc::new(message), tries: 0, behind: false }))
}

/// A number that is never negative.
pub(super) fn number(row: &Row, at: usize) -> Result<u64, Error> {
    u64::try_from(int(row, at)?)
        .map_err(|_| Error::new(Kind::Damaged, "the outbox of the MySQL store holds a negative number"))
}

pub(super) fn lane(row: &Row, at: usize) -> Result<Lane, Error> {
    let number = u16::try_from(int(row, at)?);
    number
        .map(Lane)
        .map_err(|_| Error::new(Kind::Damaged, "the outbox of the MySQL store names a lane that cannot be"))
}

/// A number as the server holds it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn damaged(sequence: u64, what: &str) -> Error {
    let sentence =
        format!("{what} of message {sequence} in the outbox cannot be read; restore it from a backup");
    Error::new(Kind::Damaged, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let all = [("x-a", "1:2"), ("x-b", ""), ("x-c", "ü ")]
            .map(|(name, value)| Header { name: name.into(), value: value.into() });
        assert_eq!(headers(&lines(&all)).unwrap(), all);
        assert_eq!(headers("").unwrap(), []);
        assert_eq!(headers("none\n"), None);
    }
}
