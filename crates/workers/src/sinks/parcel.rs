//! A message as it travels: what brokers and receivers see of it.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use semel_core::inbox::Fence;
use semel_core::outbox::{Entry, Facts, Term};
use semel_core::{Message, MessageId, Timestamp, Topic, mutant};
use serde_json::{Map, Value};

use super::Headers;

/// What the CloudEvents bindings want written as `%XX`.
const ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// What a structured event is.
const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

/// Attributes of CloudEvents, in the order in which they are written, and their headers for the prefixes in use: names that
/// are known beforehand are not copied for each message.
const ATTRIBUTES: [[&str; 3]; 6] = [
    ["specversion", "ce-specversion", "ce_specversion"],
    ["id", "ce-id", "ce_id"],
    ["source", "ce-source", "ce_source"],
    ["type", "ce-type", "ce_type"],
    ["time", "ce-time", "ce_time"],
    ["partitionkey", "ce-partitionkey", "ce_partitionkey"],
];
/// Headers that a message has beside the producer's own, at most.
const OWN_HEADERS_MAX: usize = 6 + ATTRIBUTES.len();
/// Bytes of their values, beside names that differ in length: two ids, a fence, a time.
const OWN_VALUES_BYTES: usize = 192;

/// How a message is written for the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The payload as it is, with headers of Semel's own.
    Plain,
    /// The same, and the attributes of CloudEvents 1.0 as headers.
    #[default]
    CeBinary,
    /// One JSON document of CloudEvents 1.0.
    CeStructured,
}

/// What all messages of one holding of a lane have in common.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// That of the lane, with no message's number in it.
    fence: Fence,
    format: Format,
    /// The names of attributes as headers, in the order of [`ATTRIBUTES`].
    names: [Cow<'static, str>; 6],
    source: Arc<str>,
}

/// A message, ready for a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The message's id, for the sink's own field.
    pub id: MessageId,
    /// Where it goes.
    pub topic: Topic,
    /// Its ordering key.
    pub key: Option<String>,
    /// All headers but the content type. No name comes twice unless the producer wrote it twice.
    pub headers: Headers,
    /// What the body is.
    pub content_type: String,
    /// What is sent.
    pub body: Bytes,
}

impl Stamp {
    /// For one holding of a lane. `source` is the source of CloudEvents; by default it names the store.
    pub fn new(
        facts: &Facts,
        term: Term,
        format: Format,
        prefix: &'static str,
        source: Option<&str>,
    ) -> Self {
        let store =
            || facts.store_id.iter().fold("/semel/".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        let fence = Fence::new(&facts.store_id, term, 0);
        let names = ATTRIBUTES.map(|[name, dash, underscore]| match prefix {
            "ce-" => dash.into(),
            "ce_" => underscore.into(),
            _ => [prefix, name].concat().into(),
        });
        Self { fence, format, names, source: source.map_or_else(store, str::to_owned).into() }
    }

    /// Writes a message for the wire.
    pub fn parcel(&self, entry: &Entry) -> Parcel {
        let message = &entry.message;
        let id = if mutant::on("relay-new-id-on-retry") { MessageId::new() } else { message.id };
        let text = id.to_string();
        let mut parcel = Parcel {
            id,
            topic: message.topic.clone(),
            key: message.key.clone(),
            headers: self.headers(entry, &text),
            content_type: message.content_type.clone(),
            body: message.payload.clone(),
        };
        match self.format {
            Format::Plain => {}
            Format::CeBinary => {
                for (at, value) in self.attributes(message, &text) {
                    parcel.headers.push_with(self.names[at].clone(), |text| value.write_encoded(text));
                }
            }
            Format::CeStructured => {
                parcel.content_type = STRUCTURED.into();
                parcel.body = self.structured(message, &text);
            }
        }
        parcel
    }

    /// All but the attributes. What the producer named like one of ours gives way.
    fn headers(&self, entry: &Entry, id: &str) -> Headers {
        let message = &entry.message;
        let key_bytes = message.key.as_deref().map_or(0, str::len);
        let bytes = OWN_VALUES_BYTES + 2 * key_bytes + self.source.len() + message.topic.as_str().len();
        let mut headers = Headers::with_capacity(message.headers.len() + OWN_HEADERS_MAX, bytes);
        for header in message.headers.iter().filter(|header| !self.is_ours(message, id, &header.name)) {
            headers.push(header.name.clone(), &header.value);
        }
        headers.push("semel-id", id);
        let fence = Fence { sequence: entry.sequence, ..self.fence };
        // Writing to a text cannot fail.
        headers.push_with("semel-fence", |text| {
            let _ = write!(text, "{fence}");
        });
        let optional = [
            // Brokers without keys of their own pass it on, and consumers keep its order.
            ("semel-key", &message.key),
            ("semel-correlation", &message.correlation),
            ("semel-causation", &message.causation),
            ("traceparent", &message.trace_parent),
        ];
        for (name, value) in optional {
            value.iter().for_each(|value| headers.push(name, value));
        }
        headers
    }

    /// Whether we write a header of this name on this message.
    fn is_ours(&self, message: &Message, id: &str, name: &str) -> bool {
        let traced = message.trace_parent.is_some() && name == "traceparent";
        let is_name = |(at, _): (usize, _)| self.names[at] == name;
        traced || self.format == Format::CeBinary && self.attributes(message, id).any(is_name)
    }

    /// Required ones, time, and the extensions that have a name already; each by its place among [`ATTRIBUTES`].
    fn attributes<'a>(
        &'a self,
        message: &'a Message,
        id: &'a str,
    ) -> impl Iterator<Item = (usize, Attribute<'a>)> {
        let values: [Option<Attribute<'a>>; 6] = [
            Some(Attribute::Plain("1.0")),
            Some(Attribute::Plain(id)),
            Some(Attribute::Text(&self.source)),
            Some(Attribute::Plain(message.topic.as_str())),
            message.id.made_at().map(Attribute::Time),
            message.key.as_deref().map(Attribute::Text),
        ];
        values.into_iter().enumerate().filter_map(|(at, value)| Some((at, value?)))
    }

    fn structured(&self, message: &Message, id: &str) -> Bytes {
        let attributes = self.attributes(message, id);
        let mut event: Map<String, Value> =
            attributes.map(|(at, value)| (ATTRIBUTES[at][0].to_owned(), value.to_string().into())).collect();
        event.insert("datacontenttype".into(), message.content_type.clone().into());
        let extensions = [
            ("correlationid", &message.correlation),
            ("causationid", &message.causation),
            ("traceparent", &message.trace_parent),
        ];
        for (name, value) in extensions {
            event.extend(value.iter().map(|value| (name.to_owned(), value.clone().into())));
        }
        if !is_json(&message.content_type, &message.payload) {
            event.insert("data_base64".into(), STANDARD.encode(&message.payload).into());
            return Value::Object(event).to_string().into();
        }
        // The payload goes in as it is: reading and writing it again could change a number.
        let mut text = Value::Object(event).to_string().into_bytes();
        text.pop();
        text.extend_from_slice(b",\"data\":");
        text.extend_from_slice(&message.payload);
        text.push(b'}');
        text.into()
    }
}

/// The value of an attribute.
enum Attribute<'a> {
    /// Of letters, digits, `.`, `_` and `-`.
    Plain(&'a str),
    Text(&'a str),
    Time(Timestamp),
}

impl Attribute<'_> {
    /// Appends it as the CloudEvents bindings want it in a header.
    fn write_encoded(&self, text: &mut String) {
        match self {
            Self::Plain(value) => text.push_str(value),
            Self::Text(value) => text.extend(utf8_percent_encode(value, ATTRIBUTE)),
            Self::Time(at) => rfc3339(*at, text),
        }
    }
}

impl fmt::Display for Attribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) | Self::Text(value) => f.write_str(value),
            Self::Time(at) => {
                let mut text = String::new();
                rfc3339(*at, &mut text);
                f.write_str(&text)
            }
        }
    }
}

fn is_json(content_type: &str, payload: &[u8]) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let named = kind == "application/json" || kind == "text/json" || kind.ends_with("+json");
    named && serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok()
}

/// Appends a time as RFC 3339 writes it, in UTC.
fn rfc3339(at: Timestamp, text: &mut String) {
    let micros = at.as_micros();
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    // Days to a date: the civil-from-days algorithm, on years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (seconds, millis) = (of_day / 1_000_000, of_day / 1000 % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Writing to a text cannot fail. The rest goes digit by digit: all have a fixed width.
    let _ = write!(text, "{year:04}");
    for (before, value, width) in
        [('-', month, 2), ('-', day, 2), ('T', hour, 2), (':', minute, 2), (':', second, 2), ('.', millis, 3)]
    {
        text.push(before);
        let digit = |place: u32| char::from(b'0' + (value / 10_i64.pow(place) % 10) as u8);
        text.extend((0..width).rev().map(digit));
    }
    text.push('Z');
}

#[cfg(test)]
mod tests {
    use semel_core::outbox::Lane;

    use super::*;

    fn entry(message: Message) -> Entry {
        Entry { sequence: 42, message: Arc::new(message), tries: 0, behind: false }
    }

    fn message() -> Message {
        let topic = Topic::parse("orders.paid").unwrap();
        let mut message = Message::new(topic, r#"{"amount": 10.00, "big": 12345678901234567890123}"#)
            .key("order 7")
            .header("x-shop", "berlin")
            .header("ce-type", "mine")
            .correlation("req-1")
            .causation("key-1");
        message.id = MessageId::at(Timestamp::from_micros(1_790_000_000_123_000));
        message.trace_parent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        message
    }

    fn stamp(format: Format) -> Stamp {
        let facts = Facts { engine: "memory", store_id: [0xab; 16], lanes: 8 };
        Stamp::new(&facts, Term { lane: Lane(3), epoch: 7 }, format, "ce-", None)
    }

    fn header<'a>(parcel: &'a Parcel, name: &str) -> Option<&'a str> {
        let mut found = parcel.headers.iter().filter(|(other, _)| *other == name);
        let value = found.next().map(|(_, value)| value);
        assert_eq!(found.next(), None, "{name} comes twice");
        value
    }

    #[test]
    fn a_plain_message_keeps_its_body_and_says_who_it_is_and_where_it_stood() {
        // G-42, G-43
        let message = message();
        let parcel = stamp(Format::Plain).parcel(&entry(message.clone()));
        assert_eq!((parcel.id, &parcel.body), (message.id, &message.payload));
        assert_eq!(parcel.content_type, "application/json");
        assert_eq!(header(&parcel, "semel-id"), Some(&*message.id.to_string()));
        let fence = header(&parcel, "semel-fence").and_then(Fence::parse).unwrap();
        assert_eq!((fence.epoch, fence.sequence), (7, 42));
        assert_eq!(header(&parcel, "semel-correlation"), Some("req-1"));
        assert_eq!(header(&parcel, "semel-causation"), Some("key-1"));
        assert_eq!(header(&parcel, "traceparent"), message.trace_parent.as_deref());
        assert_eq!(header(&parcel, "x-shop"), Some("berlin"));
        assert_eq!(header(&parcel, "ce-id"), None);
    }

    #[test]
    fn a_retry_is_the_same_message_under_the_same_id() {
        // G-43
        let (stamp, entry) = (stamp(Format::CeBinary), entry(message()));
        assert_eq!(stamp.parcel(&entry), stamp.parcel(&Entry { tries: 3, ..entry.clone() }));
        assert_eq!(stamp.parcel(&entry).id, entry.message.id);
    }

    #[test]
    fn a_binary_cloud_event_has_its_attributes_in_headers() {
        let message = message();
        let parcel = stamp(Format::CeBinary).parcel(&entry(message.clone()));
        assert_eq!(parcel.body, message.payload);
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", &*message.id.to_string()),
            ("ce-source", "/semel/abababababababababababababababab"),
            ("ce-type", "orders.paid"),
            ("ce-time", "2026-09-21T14:13:20.123Z"),
            ("ce-partitionkey", "order%207"),
        ] {
            assert_eq!(header(&parcel, name), Some(value), "{name}");
        }
    }

    #[test]
    fn attributes_are_named_with_the_prefix_of_their_sink() {
        let facts = Facts { engine: "memory", store_id: [0xab; 16], lanes: 8 };
        for prefix in ["ce-", "ce_", "cloudevents:"] {
            let stamp = Stamp::new(&facts, Term { lane: Lane(3), epoch: 7 }, Format::CeBinary, prefix, None);
            let parcel = stamp.parcel(&entry(message()));
            for [name, ..] in ATTRIBUTES {
                assert!(header(&parcel, &[prefix, name].concat()).is_some(), "{prefix} {name}");
            }
        }
    }

    #[test]
    fn a_structured_cloud_event_holds_json_as_it_is_and_everything_else_as_base64() {
        let parcel = stamp(Format::CeStructured).parcel(&entry(message()));
        assert_eq!(parcel.content_type, STRUCTURED);
        let text = std::str::from_utf8(&parcel.body).unwrap();
        assert!(text.contains(r#""data":{"amount": 10.00, "big": 12345678901234567890123}"#), "{text}");
        let event: Value = serde_json::from_slice(&parcel.body).unwrap();
        assert_eq!(event["type"], "orders.paid");
        assert_eq!(event["correlationid"], "req-1");
        assert_eq!(event["partitionkey"], "order 7");

        for (kind, payload) in [("application/octet-stream", "\0\u{1}"), ("application/json", "{not json")] {
            let message = Message { payload: payload.into(), ..message() }.content_type(kind);
            let parcel = stamp(Format::CeStructured).parcel(&entry(message));
            let event: Value = serde_json::from_slice(&parcel.body).unwrap();
            assert_eq!(event["data_base64"], STANDARD.encode(payload), "{event}");
            assert_eq!(event.get("data"), None);
        }
    }

    #[test]
    fn times_are_dates_also_at_the_edges() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000Z"),
            (1_767_225_599_999_999, "2025-12-31T23:59:59.999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000Z"),
        ] {
            let mut written = String::from("at ");
            rfc3339(Timestamp::from_micros(micros), &mut written);
            assert_eq!(written.strip_prefix("at "), Some(text));
        }
    }
}
