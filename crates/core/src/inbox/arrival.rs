//! A message as it arrives, and what makes it the same message the next time.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::digest::sha256;
use crate::message::Header;
use crate::mutant;
use crate::outbox::Term;

/// Longest id of a message.
pub const ID_CHARS_MAX: usize = 255;
/// Longest ordering key that is kept as it is, in bytes.
const ORDERING_KEY_BYTES_MAX: usize = 512;

/// Headers that name a message, in the order they are asked.
const ID_HEADERS: [&str; 4] = ["semel-id", "nats-msg-id", "ce-id", "ce_id"];
/// The header of Semel's relay that says under which holding of its lane it published.
const FENCE_HEADER: &str = "semel-fence";
/// Headers that name the ordering key where the source has none of its own.
const KEY_HEADERS: [&str; 3] = ["semel-key", "ce-partitionkey", "ce_partitionkey"];

/// What a producer calls a message, through every retry. Never what a broker numbers its deliveries with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Box<str>);

impl Id {
    /// 1 to [`ID_CHARS_MAX`] characters, none of them a control character.
    pub fn parse(text: &str) -> Result<Self, NoId> {
        if text.is_empty() {
            return Err(NoId::Empty);
        }
        if text.chars().count() > ID_CHARS_MAX {
            return Err(NoId::TooLong { chars: text.chars().count() });
        }
        if text.chars().any(char::is_control) {
            return Err(NoId::Control);
        }
        Ok(Self(text.into()))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Id {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        Self::parse(text)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a message has no id that could be relied on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoId {
    /// No header names it.
    #[error(
        "the message has no id: none of the headers {headers} is there; let its producer set one, \
         or name the header that holds it"
    )]
    Missing {
        /// Which were looked for.
        headers: String,
    },
    /// The header is empty.
    #[error("the id of the message is empty")]
    Empty,
    /// Too long.
    #[error("the id of the message has {chars} characters; at most {ID_CHARS_MAX} are kept")]
    TooLong {
        /// How long it is.
        chars: usize,
    },
    /// Control characters.
    #[error("the id of the message has control characters")]
    Control,
}

/// Where the id of a message is found.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    /// A header to look at first and alone, in lower case.
    pub header: Option<String>,
}

/// A message as a source delivers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Where it came from: a stream, a topic. Ids are unique within it.
    pub source: String,
    /// Where it lies there, the same at each delivery: a stream's sequence, a partition's offset. Not its id.
    ///
    /// A number alone means that all messages of the source are numbered in one order: what a relay published late is
    /// told by it. Where there is no such order, it must not be a number; Kafka's are `partition:offset`.
    pub place: String,
    /// The subject or topic it was published to.
    pub subject: String,
    /// Messages with the same key keep their order.
    pub key: Option<String>,
    /// Names in lower case.
    pub headers: Vec<Header>,
    /// The payload.
    pub payload: Bytes,
}

impl Incoming {
    /// Its place, where a source numbers all of its messages in one order, as a stream does. The places of a topic with
    /// partitions are no numbers.
    pub fn number(&self) -> Option<u64> {
        self.place.parse().ok()
    }

    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.name == name).map(|header| header.value.as_str())
    }

    /// The key its order is kept by: the source's own, or a header's. Producers may write what no index of
    /// a database takes; a key that is too long or has control characters is known by its SHA-256.
    pub fn ordering_key(&self) -> Option<Cow<'_, str>> {
        let named = || KEY_HEADERS.iter().find_map(|name| self.header(name));
        self.key.as_deref().or_else(named).filter(|key| !key.is_empty()).map(indexable)
    }

    /// The source's own key as every store can keep it: one with a NUL is known by its SHA-256. The ordering
    /// key stays the same.
    pub fn kept_key(&self) -> Option<Cow<'_, str>> {
        let key = self.key.as_deref()?;
        Some(if key.contains('\0') { indexable(key) } else { key.into() })
    }
}

fn indexable(key: &str) -> Cow<'_, str> {
    if key.len() <= ORDERING_KEY_BYTES_MAX && !key.chars().any(char::is_control) {
        return key.into();
    }
    let hash = sha256(key.as_bytes());
    hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}")).into()
}

/// Headers as one text, for stores that keep a message: a line each, name and value with a tab between.
pub fn headers_text(headers: &[Header]) -> String {
    let escape = |text: &str| {
        let mut escaped = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\\' => escaped.push_str("\\\\"),
                '\t' => escaped.push_str("\\t"),
                '\n' => escaped.push_str("\\n"),
                '\0' => escaped.push_str("\\0"),
                c => escaped.push(c),
            }
        }
        escaped
    };
    headers.iter().map(|header| format!("{}\t{}\n", escape(&header.name), escape(&header.value))).collect()
}

/// Takes back what [`headers_text`] made. A line that is none is left out.
pub fn headers_of(text: &str) -> Vec<Header> {
    let plain = |escaped: &str| {
        let mut chars = escaped.chars();
        let mut text = String::with_capacity(escaped.len());
        while let Some(c) = chars.next() {
            text.push(match (c, c == '\\') {
                (c, false) => c,
                (_, true) => match chars.next() {
                    Some('t') => '\t',
                    Some('n') => '\n',
                    Some('0') => '\0',
                    Some(other) => other,
                    None => '\\',
                },
            });
        }
        text
    };
    let header = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        Some(Header { name: plain(name), value: plain(value) })
    };
    text.split('\n').filter_map(header).collect()
}

/// Which holding of its lane a relay published under, and where in it: `LANE.EPOCH.SEQUENCE`, the lane in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// A lane of one store: two stores that publish under the same key do not overtake each other.
    pub lane: u64,
    /// Grows each time the lane changes hands.
    pub epoch: u64,
    /// Grows with each message of a key.
    pub sequence: u64,
}

impl Fence {
    /// For a message of a lane of this store.
    pub fn new(store_id: &[u8; 16], term: Term, sequence: u64) -> Self {
        let hash = sha256(&[&store_id[..], &term.lane.0.to_be_bytes()].concat());
        let first: [u8; 8] = std::array::from_fn(|at| hash[at]);
        // Databases have signed numbers.
        let lane = u64::from_be_bytes(first) >> 1;
        let lane = if mutant::on("fence-without-store") { u64::from(term.lane.0) } else { lane };
        Self { lane, epoch: term.epoch, sequence }
    }

    /// `None` for anything that is no fence: it then says nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let fence = Self {
            lane: u64::from_str_radix(parts.next().filter(|lane| lane.len() == 16)?, 16).ok()?,
            epoch: parts.next()?.parse().ok()?,
            sequence: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(fence)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}.{}", self.lane, self.epoch, self.sequence)
    }
}

/// A message with an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// What its producer calls it.
    pub id: Id,
    /// SHA-256 of the payload.
    pub hash: [u8; 32],
    /// The relay's place in its lane, if it says so.
    pub fence: Option<Fence>,
    /// The message.
    pub message: Incoming,
    /// The letter it was read from, if it had been set aside. Then the ledger has its row already.
    pub letter: Option<u64>,
    /// How often it was tried before.
    pub tries: u32,
}

impl Arrival {
    /// Finds the id. A message without one is given back with the reason.
    pub fn read(message: Incoming, ids: &Ids) -> Result<Self, Box<Nameless>> {
        match find_id(&message, ids) {
            Ok(id) => Ok(Self::of(id, message)),
            Err(why) => Err(Box::new(Nameless { message, why })),
        }
    }

    /// A message whose id is known.
    pub fn of(id: Id, message: Incoming) -> Self {
        let fence = message.header(FENCE_HEADER).and_then(Fence::parse);
        let hash = match mutant::on("inbox-conflict-skipped") {
            true => [0; 32],
            false => sha256(&message.payload),
        };
        Self { id, hash, fence, message, letter: None, tries: 0 }
    }

    /// The payload's size in bytes.
    pub fn size(&self) -> usize {
        self.message.payload.len()
    }
}

/// A message without an id that could be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nameless {
    /// The message, whole.
    pub message: Incoming,
    /// What is wrong with its id.
    pub why: NoId,
}

fn find_id(message: &Incoming, ids: &Ids) -> Result<Id, NoId> {
    let names: Vec<&str> = match &ids.header {
        Some(header) => vec![header],
        None => ID_HEADERS.to_vec(),
    };
    match names.iter().find_map(|name| message.header(name)) {
        Some(text) => Id::parse(text),
        None => Err(NoId::Missing { headers: names.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Lane;

    fn message(headers: &[(&str, &str)]) -> Incoming {
        let headers =
            headers.iter().map(|(name, value)| Header { name: (*name).into(), value: (*value).into() });
        Incoming { headers: headers.collect(), payload: Bytes::from_static(b"{}"), ..Incoming::default() }
    }

    #[test]
    fn the_id_is_what_the_producer_set_never_where_it_lies() {
        // G-45
        let all = [("ce-id", "c"), ("nats-msg-id", "n"), ("semel-id", "s")];
        let id = |message, ids: &Ids| Arrival::read(message, ids).map(|arrival| arrival.id.to_string());
        let anywhere = Ids::default();
        assert_eq!(id(message(&all), &anywhere).unwrap(), "s");
        assert_eq!(id(message(&all[..2]), &anywhere).unwrap(), "n");
        assert_eq!(id(message(&all[..1]), &anywhere).unwrap(), "c");
        let own = Ids { header: Some("x-id".into()) };
        assert_eq!(id(message(&[("x-id", "o"), ("semel-id", "s")]), &own).unwrap(), "o");

        let nameless = Incoming { place: "orders:17".into(), ..message(&[]) };
        let Nameless { message: back, why } = *Arrival::read(nameless.clone(), &anywhere).unwrap_err();
        assert_eq!(back, nameless, "nothing of it is lost");
        assert!(why.to_string().contains("nats-msg-id"), "{why}");
        assert!(Arrival::read(message(&all), &own).is_err(), "a named header is asked alone");
    }

    #[test]
    fn an_id_is_kept_whole_or_refused() {
        assert!(Id::parse(&"ä".repeat(ID_CHARS_MAX)).is_ok());
        assert_eq!(Id::parse(&"x".repeat(256)), Err(NoId::TooLong { chars: 256 }));
        assert_eq!(Id::parse(""), Err(NoId::Empty));
        assert_eq!(Id::parse("a\0b"), Err(NoId::Control));
    }

    #[test]
    fn another_payload_has_another_hash() {
        // G-45
        let id = Id::parse("1").unwrap();
        let one = Arrival::of(id.clone(), message(&[]));
        let other = Incoming { payload: Bytes::from_static(b"{ }"), ..message(&[]) };
        assert_eq!(one.hash, Arrival::of(id.clone(), message(&[("x", "y")])).hash, "headers may differ");
        assert_ne!(one.hash, Arrival::of(id, other).hash);
    }

    #[test]
    fn a_fence_is_read_whole_or_not_at_all() {
        let fence = Fence { lane: 3, epoch: 7, sequence: 1042 };
        assert_eq!(Fence::parse(&fence.to_string()), Some(fence));
        assert_eq!(fence.to_string(), "0000000000000003.7.1042");
        let lane = "0000000000000001";
        for bad in [
            "",
            lane,
            "1.2.3",
            &format!("{lane}.2"),
            &format!("{lane}.2.3.4"),
            &format!("{lane}.-2.3"),
            "a.b.c",
        ] {
            assert_eq!(Fence::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn lanes_of_different_stores_are_different_lanes() {
        // G-42, G-45
        let of = |store, lane| Fence::new(&[store; 16], Term { lane: Lane(lane), epoch: 1 }, 1).lane;
        assert_eq!(of(1, 3), of(1, 3));
        assert_ne!(of(1, 3), of(2, 3));
        assert_ne!(of(1, 3), of(1, 4));
        assert!(of(1, 3) <= i64::MAX as u64, "every database can keep it");
    }

    #[test]
    fn headers_come_back_from_their_text() {
        let odd = message(&[("a", "1"), ("b", ""), ("c:\\", "tab\there\nline\\n\0"), ("ä", "\\")]);
        assert_eq!(headers_of(&headers_text(&odd.headers)), odd.headers);
        assert_eq!(headers_of(""), []);
    }

    #[test]
    fn a_key_no_index_takes_is_known_by_its_digest() {
        // G-41
        let of = |key: &str| Incoming { key: Some(key.into()), ..Incoming::default() };
        let fits = "k".repeat(ORDERING_KEY_BYTES_MAX);
        assert_eq!(of(&fits).ordering_key().as_deref(), Some(&*fits));
        let long = format!("{fits}k");
        for odd in ["a\0b", "a\nb", &*long] {
            let message = of(odd);
            let key = message.ordering_key().unwrap();
            assert!(key.starts_with("sha256:") && key.len() == 7 + 64, "{key}");
            let kept = Incoming { key: message.kept_key().map(Cow::into_owned), ..Incoming::default() };
            assert_eq!(kept.ordering_key(), message.ordering_key(), "the same from its letter");
            assert!(!kept.key.unwrap().contains('\0'));
        }
        assert_eq!(
            of("a\0b").ordering_key().as_deref(),
            Some("sha256:59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138"),
        );
        assert_ne!(of("a\0b").ordering_key(), of("a\0c").ordering_key());
    }

    #[test]
    fn the_sources_own_key_comes_before_a_header() {
        let named = message(&[("semel-key", "order-7")]);
        assert_eq!(named.ordering_key().as_deref(), Some("order-7"));
        assert_eq!(Incoming { key: Some("k".into()), ..named }.ordering_key().as_deref(), Some("k"));
        assert_eq!(message(&[("semel-key", "")]).ordering_key(), None);
    }
}
