//! Messages as rows, both ways. What cannot be read is damage, never a guess.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::clock::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::message::{Header, Message, MessageId, Topic};
use semel_core::outbox::{Entry, Lane};
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use super::super::connect::{Param, get};

/// A UUID on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uuid(pub(super) [u8; 16]);

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

impl ToSql for Uuid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

/// Reads a message whose columns start at `at`: id, topic, key, headers, content_type, payload,
/// correlation, causation, trace_parent, deliver_after.
pub(super) fn message(row: &Row, at: usize) -> Result<Message, Error> {
    let id: Uuid = get(row, at)?;
    let topic = Topic::parse(get(row, at + 1)?).map_err(|error| damaged("topic").because(error))?;
    Ok(Message {
        id: MessageId::from_bytes(id.0),
        topic,
        key: get(row, at + 2)?,
        headers: headers(get(row, at + 3)?)?,
        content_type: get(row, at + 4)?,
        payload: Bytes::copy_from_slice(get(row, at + 5)?),
        correlation: get(row, at + 6)?,
        causation: get(row, at + 7)?,
        trace_parent: get(row, at + 8)?,
        deliver_after: get::<Option<i64>>(row, at + 9)?.map(Timestamp::from_micros),
    })
}

/// Reads a sequence number and the message after it.
pub(super) fn entry(row: &Row, at: usize) -> Result<Entry, Error> {
    Ok(Entry {
        sequence: number(row, at)?,
        message: Arc::new(message(row, at + 1)?),
        tries: 0,
        behind: false,
    })
}

pub(super) fn number(row: &Row, at: usize) -> Result<u64, Error> {
    u64::try_from(get::<i64>(row, at)?).map_err(|_| damaged("number"))
}

pub(super) fn lane(row: &Row, at: usize) -> Result<Lane, Error> {
    u16::try_from(get::<i16>(row, at)?).map(Lane).map_err(|_| damaged("lane"))
}

pub(super) fn damaged(column: &str) -> Error {
    let sentence = format!("a row of the outbox has an unreadable {column}; who wrote it past the library?");
    Error::new(Kind::Damaged, sentence)
}

/// Lines of `name: value`. Neither can hold a line feed.
fn lines(headers: &[Header]) -> String {
    headers.iter().map(|header| format!("{}: {}\n", header.name, header.value)).collect()
}

fn headers(lines: &str) -> Result<Vec<Header>, Error> {
    lines
        .split_terminator('\n')
        .map(|line| {
            let (name, value) = line.split_once(": ").ok_or_else(|| damaged("header"))?;
            Ok(Header { name: name.to_owned(), value: value.to_owned() })
        })
        .collect()
}

/// A message for `enqueue_one.sql`.
pub(super) struct Single<'a> {
    id: Uuid,
    topic: &'a str,
    headers: String,
    payload: &'a [u8],
    message: &'a Message,
}

impl<'a> Single<'a> {
    pub(super) const TYPES: [Type; 9] = [
        Type::UUID,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
    ];

    pub(super) fn of(message: &'a Message) -> Self {
        let (id, headers) = (Uuid(*message.id.as_bytes()), lines(&message.headers));
        Self { id, topic: message.topic.as_str(), headers, payload: &message.payload, message }
    }

    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 9] {
        let Self { id, topic, headers, payload, message } = self;
        [
            id,
            topic,
            &message.key,
            headers,
            &message.content_type,
            payload,
            &message.correlation,
            &message.causation,
            &message.trace_parent,
        ]
    }
}

/// Messages, column by column, for `enqueue.sql` and for the one that takes another's place.
pub(super) struct Columns<'a> {
    ids: Vec<Uuid>,
    topics: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    headers: Vec<String>,
    content_types: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    correlations: Vec<Option<&'a str>>,
    causations: Vec<Option<&'a str>>,
    trace_parents: Vec<Option<&'a str>>,
    deliver_after: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(messages: &'a [Message]) -> Self {
        fn column<'a, T>(messages: &'a [Message], of: impl FnMut(&'a Message) -> T) -> Vec<T> {
            messages.iter().map(of).collect()
        }
        Self {
            ids: column(messages, |m| Uuid(*m.id.as_bytes())),
            topics: column(messages, |m| m.topic.as_str()),
            keys: column(messages, |m| m.key.as_deref()),
            headers: column(messages, |m| lines(&m.headers)),
            content_types: column(messages, |m| m.content_type.as_str()),
            payloads: column(messages, |m| &m.payload[..]),
            correlations: column(messages, |m| m.correlation.as_deref()),
            causations: column(messages, |m| m.causation.as_deref()),
            trace_parents: column(messages, |m| m.trace_parent.as_deref()),
            deliver_after: column(messages, |m| m.deliver_after.map(Timestamp::as_micros)),
        }
    }

    pub(super) fn params(&self) -> [Param<'_>; 10] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.topics, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.headers, Type::TEXT_ARRAY),
            (&self.content_types, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.correlations, Type::TEXT_ARRAY),
            (&self.causations, Type::TEXT_ARRAY),
            (&self.trace_parents, Type::TEXT_ARRAY),
            (&self.deliver_after, Type::INT8_ARRAY),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let header = |name: &str, value: &str| Header { name: name.into(), value: value.into() };
        for given in [vec![], vec![header("a", "")], vec![header("a", " b: c "), header("a", "d")]] {
            assert_eq!(headers(&lines(&given)).unwrap(), given);
        }
        assert!(headers("no colon\n").is_err());
    }
}
