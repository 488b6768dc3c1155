//! What is stored when an effect has happened, and given back on every retry.
//!
//! The encoding is versioned: a reader that meets a newer version says so instead of guessing.

use std::borrow::Cow;

use bytes::Bytes;

use crate::codec::{Reader, Truncated, Writer, number_bytes};

/// The version this build writes.
const VERSION: u8 = 1;

/// Most header or trailer lines read back; a sane answer has far fewer.
const LINES_MAX: u64 = 10_000;

/// An answer: an HTTP response, or any bytes with a content type.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// HTTP status, or 0 where there is no such thing.
    pub status: u16,
    /// Header lines in their order, repeats kept.
    pub headers: Vec<Line>,
    /// Trailer lines in their order.
    pub trailers: Vec<Line>,
    /// The body, or that it was not kept.
    pub body: Body,
    /// Something was taken out before storing.
    pub redacted: bool,
}

/// One header or trailer line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Field name; see [`Line::name_of`].
    pub name: Cow<'static, str>,
    /// Field value, as bytes; see [`Line::value_of`].
    pub value: Bytes,
}

impl Line {
    /// A name for a line. Names that most responses have are not copied.
    pub fn name_of(name: &str) -> Cow<'static, str> {
        Cow::Borrowed(match name {
            "content-type" => "content-type",
            "content-length" => "content-length",
            "date" => "date",
            "location" => "location",
            "etag" => "etag",
            "cache-control" => "cache-control",
            "vary" => "vary",
            "server" => "server",
            other => return Cow::Owned(other.to_owned()),
        })
    }

    /// A value for a line. Values that most responses have are not copied.
    pub fn value_of(value: &[u8]) -> Bytes {
        usual(value).unwrap_or_else(|| Bytes::copy_from_slice(value))
    }
}

/// The body of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The bytes.
    Kept(Bytes),
    /// It was larger than the route keeps. The effect happened; a replay says so without it.
    NotKept {
        /// How large it was, where that was known.
        bytes: Option<u64>,
    },
}

impl Default for Body {
    fn default() -> Self {
        Self::Kept(Bytes::new())
    }
}

/// Stored bytes that cannot be turned into an outcome. The effect they tell of has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// Written by a newer Semel.
    #[error("the outcome was written in format {found}; this build reads up to {VERSION}: upgrade it")]
    NewerVersion {
        /// The version found.
        found: u8,
    },
    /// The bytes end early or are not an outcome.
    #[error("the stored outcome is damaged: {what}; restore the record from a backup or settle it by hand")]
    Damaged {
        /// Where reading stopped.
        what: &'static str,
    },
    /// Sealed with a key that is not in the keyring.
    #[error("the outcome is sealed with key {key:?}, which is not configured; add that key to the keyring")]
    KeyMissing {
        /// The key's id.
        key: String,
    },
    /// Sealed with the key of a subject, and that key is not there.
    #[error(
        "the outcome is sealed with a subject's key, {key}, which is not in the key place: it was forgotten on \
         request, or another place is configured"
    )]
    SubjectKeyMissing {
        /// The key's id, which says nothing of the subject.
        key: String,
    },
    /// The key is there, the seal does not open: wrong key under this id, or altered bytes.
    #[error("the outcome's seal does not open with key {key:?}: wrong key under this id, or altered data")]
    SealBroken {
        /// The key's id.
        key: String,
    },
}

impl Outcome {
    /// Any bytes with a content type; for uses without HTTP.
    pub fn bytes(content_type: &str, body: impl Into<Bytes>) -> Self {
        let content_type = Line { name: "content-type".into(), value: content_type.to_owned().into() };
        Self { headers: vec![content_type], body: Body::Kept(body.into()), ..Self::default() }
    }

    /// UTF-8 text.
    pub fn text(body: impl Into<String>) -> Self {
        Self::bytes("text/plain; charset=utf-8", body.into())
    }

    /// The body's bytes, if they were kept.
    pub fn body_bytes(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Kept(bytes) => Some(bytes),
            Body::NotKept { .. } => None,
        }
    }

    /// What is left of it in the smallest space: that it happened, and with which status.
    #[must_use]
    pub fn without_body(&self) -> Self {
        let bytes = match &self.body {
            Body::Kept(body) => Some(body.len() as u64),
            Body::NotKept { bytes } => *bytes,
        };
        Self { status: self.status, body: Body::NotKept { bytes }, ..Self::default() }
    }

    /// The value of the first header line with this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().find(|line| line.name.eq_ignore_ascii_case(name)).map(|line| &line.value)
    }

    /// The versioned encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(self.encoded_bytes()));
        out.byte(VERSION);
        let kept = matches!(self.body, Body::Kept(_));
        out.byte(u8::from(self.redacted) | u8::from(kept) << 1);
        out.number(u64::from(self.status));
        for lines in [&self.headers, &self.trailers] {
            out.number(lines.len() as u64);
            for line in lines {
                out.bytes(line.name.as_bytes());
                out.bytes(&line.value);
            }
        }
        match &self.body {
            Body::Kept(bytes) => out.bytes(bytes),
            Body::NotKept { bytes } => out.number(bytes.map_or(0, |n| n.saturating_add(1))),
        }
        out.0
    }

    /// Exactly what [`encode`](Self::encode) writes: a vector without room to spare becomes `Bytes` as it is, and is
    /// counted by others only when somebody shares it.
    fn encoded_bytes(&self) -> usize {
        let sized = |bytes: usize| number_bytes(bytes as u64) + bytes;
        let lines = |lines: &Vec<Line>| {
            let each = lines.iter().map(|line| sized(line.name.len()) + sized(line.value.len()));
            number_bytes(lines.len() as u64) + each.sum::<usize>()
        };
        let body = match &self.body {
            Body::Kept(bytes) => sized(bytes.len()),
            Body::NotKept { bytes } => number_bytes(bytes.map_or(0, |n| n.saturating_add(1))),
        };
        2 + number_bytes(u64::from(self.status)) + lines(&self.headers) + lines(&self.trailers) + body
    }

    /// Reads an encoding back. Byte strings share memory with `encoded`.
    pub fn decode(encoded: &Bytes) -> Result<Self, Unreadable> {
        match encoded.first() {
            None => return Err(Unreadable::Damaged { what: "it is empty" }),
            Some(&VERSION) => {}
            Some(&found) if found > VERSION && found < SEALED => {
                return Err(Unreadable::NewerVersion { found });
            }
            Some(_) => return Err(Unreadable::Damaged { what: "it does not begin with a format version" }),
        }
        let mut input = Reader(&encoded[1..]);
        let outcome =
            read(&mut input, encoded).map_err(|Truncated| Unreadable::Damaged { what: "it ends early" })?;
        if !input.0.is_empty() {
            return Err(Unreadable::Damaged { what: "bytes follow its end" });
        }
        Ok(outcome)
    }
}

/// First byte of sealed bytes; formats stay below it.
pub(crate) const SEALED: u8 = 0x80;

fn read(input: &mut Reader<'_>, whole: &Bytes) -> Result<Outcome, Truncated> {
    let flags = input.byte()?;
    let status = u16::try_from(input.number()?).map_err(|_| Truncated)?;
    let headers = read_lines(input, whole)?;
    let trailers = read_lines(input, whole)?;
    let body = if flags & 2 != 0 {
        Body::Kept(whole.slice_ref(input.bytes()?))
    } else {
        Body::NotKept { bytes: input.number()?.checked_sub(1) }
    };
    Ok(Outcome { status, headers, trailers, body, redacted: flags & 1 != 0 })
}

fn read_lines(input: &mut Reader<'_>, whole: &Bytes) -> Result<Vec<Line>, Truncated> {
    let count = input.number()?;
    if count > LINES_MAX {
        return Err(Truncated);
    }
    let mut lines = Vec::with_capacity(count.min(64) as usize);
    for _ in 0..count {
        let name = std::str::from_utf8(input.bytes()?).map_err(|_| Truncated)?;
        let value = input.bytes()?;
        let value = usual(value).unwrap_or_else(|| whole.slice_ref(value));
        lines.push(Line { name: Line::name_of(name), value });
    }
    Ok(lines)
}

/// Values that most responses have count nobody who shares the encoding.
fn usual(value: &[u8]) -> Option<Bytes> {
    const USUAL: [&[u8]; 2] = [b"application/json", b"text/plain; charset=utf-8"];
    USUAL.into_iter().find(|usual| *usual == value).map(Bytes::from_static)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Outcome {
        let line = |name: &'static str, value: &'static str| Line { name: name.into(), value: value.into() };
        Outcome {
            status: 201,
            headers: vec![line("content-type", "application/json"), line("x", "1"), line("x", "2")],
            trailers: vec![line("grpc-status", "0")],
            body: Body::Kept("{\"id\":7}".into()),
            redacted: true,
        }
    }

    #[test]
    fn an_outcome_comes_back_as_it_was_stored() {
        // G-14
        let not_kept = Outcome { status: 200, body: Body::NotKept { bytes: Some(0) }, ..Outcome::default() };
        let unknown_size = Outcome { body: Body::NotKept { bytes: None }, ..not_kept.clone() };
        let large = Outcome::text("x".repeat(20_000));
        for outcome in [sample(), not_kept, unknown_size, large, Outcome::text("ok"), Outcome::default()] {
            let encoded = outcome.encode();
            assert_eq!(encoded.len(), outcome.encoded_bytes(), "it has no room to spare");
            assert_eq!(Outcome::decode(&encoded.into()), Ok(outcome));
        }
    }

    #[test]
    fn truncated_and_foreign_bytes_are_named_and_never_panic() {
        // G-20
        let whole = Bytes::from(sample().encode());
        for cut in 0..whole.len() {
            assert!(
                matches!(Outcome::decode(&whole.slice(..cut)), Err(Unreadable::Damaged { .. })),
                "cut at {cut}"
            );
        }
        let mut longer = whole.to_vec();
        longer.push(0);
        assert!(matches!(Outcome::decode(&longer.into()), Err(Unreadable::Damaged { .. })));
    }

    #[test]
    fn an_outcome_from_a_newer_version_says_upgrade() {
        // G-20
        let mut newer = sample().encode();
        newer[0] = VERSION + 1;
        let error = Outcome::decode(&newer.into()).unwrap_err();
        assert_eq!(error, Unreadable::NewerVersion { found: VERSION + 1 });
        assert!(error.to_string().contains("upgrade"));
    }
}
