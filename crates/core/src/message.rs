//! A message: what a committed transaction has to say to others.
//!
//! It gets its id before anybody hears of it and keeps it through every retry, so that whoever
//! receives it twice can tell. Nothing here publishes; see [`outbox`](crate::outbox).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::{Clock, SystemClock, Timestamp};

/// Longest topic: what Kafka takes.
pub const TOPIC_CHARS_MAX: usize = 249;
/// Longest ordering key.
pub const ORDERING_KEY_BYTES_MAX: usize = 512;
/// Most headers of a message.
pub const HEADERS_MAX: usize = 64;
/// Longest value of a header, content type, correlation id, causation id or trace parent.
pub const HEADER_BYTES_MAX: usize = 4096;
/// Largest payload. Brokers take less; what they refuse becomes a dead letter.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Header names that begin so are Semel's own.
pub const RESERVED_PREFIX: &str = "semel-";

/// The identity of a message: a UUID, version 7, made by its producer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(uuid::Uuid);

impl MessageId {
    /// A new id that begins with the time, so that ids of one producer are roughly in order.
    pub fn new() -> Self {
        Self::at(SystemClock.now())
    }

    /// A new id of a given moment.
    pub fn at(now: Timestamp) -> Self {
        let millis = u64::try_from(now.as_micros() / 1000).unwrap_or(0);
        let random: [u8; 10] = rand::random();
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// Takes back what a store kept.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes(bytes))
    }

    /// The raw bytes, as stores keep them.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// When it was made, if it is of version 7 and says so.
    pub fn made_at(&self) -> Option<Timestamp> {
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
        micros.checked_add(i64::from(nanos / 1000)).map(Timestamp::from_micros)
    }
}

impl Default for MessageId {
    fn default() -> Self {
        Self::new()
    }
}

impl FromStr for MessageId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        uuid::Uuid::try_parse(text).map(Self).map_err(|_| Invalid::Id)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

/// Where messages of one kind go: a Kafka topic, a NATS subject, a path below a URL. Clones are cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Letters, digits, `.`, `_` and `-`, at most [`TOPIC_CHARS_MAX`]; no empty part between dots.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let fits = (1..=TOPIC_CHARS_MAX).contains(&text.len()) && text.chars().all(plain);
        if fits && text.split('.').all(|part| !part.is_empty()) {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::Topic)
        }
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Topic {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text)
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One header of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In lower case: letters, digits and `-`.
    pub name: String,
    /// Text with no control characters.
    pub value: String,
}

/// What is to be published once its transaction has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its identity, through every retry.
    pub id: MessageId,
    /// Where it goes.
    pub topic: Topic,
    /// Messages with the same key keep their order. Without one there is no order.
    pub key: Option<String>,
    /// What else is to travel with it.
    pub headers: Vec<Header>,
    /// What the payload is.
    pub content_type: String,
    /// The payload.
    pub payload: Bytes,
    /// What all messages and calls of one story share, from the HTTP request on.
    pub correlation: Option<String>,
    /// What caused this one: the id of a message, the key of an operation.
    pub causation: Option<String>,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// Not before this time, on the store's clock. A delayed message leaves the order of its key.
    pub deliver_after: Option<Timestamp>,
}

impl Message {
    /// A message with a new id, no key, and `application/json`.
    pub fn new(topic: Topic, payload: impl Into<Bytes>) -> Self {
        Self {
            id: MessageId::new(),
            topic,
            key: None,
            headers: Vec::new(),
            content_type: "application/json".into(),
            payload: payload.into(),
            correlation: None,
            causation: None,
            trace_parent: None,
            deliver_after: None,
        }
    }

    /// Keeps its order among messages of this key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Header { name: name.into(), value: value.into() });
        self
    }

    /// Says what the payload is.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// Names the story it belongs to.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.correlation = Some(id.into());
        self
    }

    /// Names what caused it.
    pub fn causation(mut self, id: impl Into<String>) -> Self {
        self.causation = Some(id.into());
        self
    }

    /// Not before this time.
    pub fn deliver_after(mut self, at: Timestamp) -> Self {
        self.deliver_after = Some(at);
        self
    }

    /// Whether it may be written to an outbox. Every way in asks this first, so that what is read back
    /// can always be published as it is.
    pub fn check(&self) -> Result<(), Invalid> {
        let text = |what: &'static str, value: &str| match value {
            value if value.len() > HEADER_BYTES_MAX => Err(Invalid::TooLong { what, bytes: value.len() }),
            value if value.chars().any(char::is_control) => Err(Invalid::Control { what }),
            _ => Ok(()),
        };
        match &self.key {
            Some(key) if key.is_empty() => return Err(Invalid::EmptyKey),
            Some(key) if key.len() > ORDERING_KEY_BYTES_MAX => {
                return Err(Invalid::TooLong { what: "ordering key", bytes: key.len() });
            }
            Some(key) => text("ordering key", key)?,
            None => {}
        }
        if self.headers.len() > HEADERS_MAX {
            return Err(Invalid::Headers { count: self.headers.len() });
        }
        for header in &self.headers {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let named = !header.name.is_empty() && header.name.chars().all(plain);
            if !named || header.name.starts_with(RESERVED_PREFIX) || header.name.len() > TOPIC_CHARS_MAX {
                return Err(Invalid::HeaderName { name: header.name.clone() });
            }
            text("header", &header.value)?;
        }
        text("content type", &self.content_type)?;
        text("correlation id", self.correlation.as_deref().unwrap_or_default())?;
        text("causation id", self.causation.as_deref().unwrap_or_default())?;
        text("trace parent", self.trace_parent.as_deref().unwrap_or_default())?;
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Invalid::TooLong { what: "payload", bytes: self.payload.len() });
        }
        Ok(())
    }
}

/// Why something is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The id.
    #[error("the id of a message is a UUID, as in 018f3c1e-7d2a-7c4b-9b1a-5e2f0c9d8a77")]
    Id,
    /// The topic.
    #[error(
        "a topic has 1 to {TOPIC_CHARS_MAX} letters, digits, `.`, `_` or `-`, and nothing empty between dots"
    )]
    Topic,
    /// An empty ordering key.
    #[error("an ordering key is not empty; leave it out where there is no order to keep")]
    EmptyKey,
    /// Too many headers.
    #[error("a message has at most {HEADERS_MAX} headers, not {count}")]
    Headers {
        /// How many it has.
        count: usize,
    },
    /// A header's name.
    #[error(
        "`{name}` is no header of a message: lower-case letters, digits and `-`, not beginning with `{RESERVED_PREFIX}`"
    )]
    HeaderName {
        /// As given.
        name: String,
    },
    /// A control character.
    #[error("the {what} has control characters")]
    Control {
        /// Which part.
        what: &'static str,
    },
    /// Too long.
    #[error("the {what} is too long: {bytes} bytes")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// How long it is.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic::parse("orders.paid").unwrap()
    }

    #[test]
    fn an_id_says_when_it_was_made_and_comes_back_from_its_text() {
        let now = Timestamp::from_micros(1_790_000_000_123_000);
        let id = MessageId::at(now);
        assert_eq!(id.made_at(), Some(now));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(MessageId::from_bytes(*id.as_bytes()), id);
        assert_ne!(MessageId::at(now), id);
    }

    #[test]
    fn topics_are_what_every_broker_takes() {
        for good in ["orders", "orders.paid", "a-b_c.D9"] {
            assert!(Topic::parse(good).is_ok(), "{good}");
        }
        let long = "x".repeat(TOPIC_CHARS_MAX + 1);
        for bad in ["", ".", "a..b", ".a", "a.", "a b", "a*", "a>", "ä", "a/b", &long] {
            assert_eq!(Topic::parse(bad), Err(Invalid::Topic), "{bad}");
        }
    }

    #[test]
    fn what_could_not_be_published_is_refused_when_it_is_written() {
        let good = Message::new(topic(), "{}").key("order-7").header("x-shop", "berlin");
        assert_eq!(good.check(), Ok(()));
        let bad = [
            good.clone().key(""),
            good.clone().key("k".repeat(ORDERING_KEY_BYTES_MAX + 1)),
            good.clone().header("X-Upper", "1"),
            good.clone().header("semel-id", "1"),
            good.clone().header("", "1"),
            good.clone().header("x", "a\r\nb"),
            good.clone().content_type("text/plain\0"),
            good.clone().correlation("c".repeat(HEADER_BYTES_MAX + 1)),
            (0..HEADERS_MAX).fold(good.clone(), |message, _| message.header("x", "1")),
            Message { payload: vec![0; PAYLOAD_BYTES_MAX + 1].into(), ..good },
        ];
        for message in bad {
            assert!(message.check().is_err(), "{:?}", message.headers);
        }
    }
}
