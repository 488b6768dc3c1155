//! The idempotency key: the name a client gives one intent, and repeats on every retry of it.
//!
//! Parsing is strict and happens once, before anything is looked up. A key on its own never
//! identifies an operation: [`Operation`](crate::Operation) adds namespace, tenant and route.

use std::fmt;
use std::sync::Arc;

/// Longest key accepted, in characters after unquoting.
pub const KEY_CHARS_MAX: usize = 255;

/// Keys shorter than this are counted as guessable.
const KEY_CHARS_STRONG: usize = 16;

/// A client's key: 1 to 255 visible ASCII characters, quotes already removed. Cloning is cheap.
///
/// ```
/// use semel_core::Key;
/// assert_eq!(Key::parse(b"\"9f1c\"")?, Key::parse(b"9f1c")?);
/// assert!(Key::parse(b"two words").is_err());
/// # Ok::<(), semel_core::key::Invalid>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// Why a key was refused. The text is fit for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Nothing was left after unquoting.
    #[error("the idempotency key is empty; send 1 to 255 visible ASCII characters")]
    Empty,
    /// More than [`KEY_CHARS_MAX`] characters.
    #[error("the idempotency key is {chars} characters long; the longest accepted is 255")]
    TooLong {
        /// Its length in bytes as received.
        chars: usize,
    },
    /// A character outside `!`…`~`.
    #[error("the idempotency key has a character at position {at} that is not visible ASCII")]
    Character {
        /// Byte position in the value as received.
        at: usize,
    },
    /// It opens with a quote but is not one quoted string.
    #[error("the idempotency key starts with a quote but is not one quoted string")]
    Quoting,
}

/// Why a key is easy to guess or to repeat by accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weakness {
    /// Fewer than 16 characters.
    Short,
    /// Digits only, like a timestamp or a counter.
    Numeric,
    /// One or two distinct characters.
    Repetitive,
}

impl Key {
    /// Reads a header value: the quoted form `"abc"` and the bare form `abc` are the same key.
    pub fn parse(value: &[u8]) -> Result<Self, Invalid> {
        // Checked before anything is copied: a ten-megabyte header costs nothing.
        if value.len() > 2 * KEY_CHARS_MAX + 2 {
            return Err(Invalid::TooLong { chars: value.len() });
        }
        let trimmed = value.trim_ascii();
        let is_quoted = trimmed.first() == Some(&b'"') && !crate::mutant::on("quotes-kept");
        if is_quoted { unquote(trimmed) } else { Self::bare(trimmed) }
    }

    fn bare(value: &[u8]) -> Result<Self, Invalid> {
        if value.is_empty() {
            return Err(Invalid::Empty);
        }
        if value.len() > KEY_CHARS_MAX && !crate::mutant::on("key-length-unchecked") {
            return Err(Invalid::TooLong { chars: value.len() });
        }
        match value.iter().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) if !crate::mutant::on("key-characters-unchecked") => Err(Invalid::Character { at }),
            _ => Ok(Self(String::from_utf8_lossy(value).into())),
        }
    }

    /// Takes back what [`as_str`](Self::as_str) gave and a store kept: no quotes are removed, since a
    /// key may itself begin with one.
    pub fn from_stored(text: &str) -> Result<Self, Invalid> {
        Self::bare(text.as_bytes())
    }

    /// The key without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key looks guessable. Worth a warning and a count, never a refusal.
    pub fn weakness(&self) -> Option<Weakness> {
        let bytes = self.0.as_bytes();
        let first = bytes.first();
        let second = bytes.iter().find(|byte| Some(*byte) != first);
        if bytes.iter().all(|byte| Some(byte) == first || Some(byte) == second) {
            Some(Weakness::Repetitive)
        } else if bytes.iter().all(u8::is_ascii_digit) {
            Some(Weakness::Numeric)
        } else if bytes.len() < KEY_CHARS_STRONG {
            Some(Weakness::Short)
        } else {
            None
        }
    }
}

impl std::str::FromStr for Key {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

/// A structured-field string: backslash escapes only a quote or a backslash.
fn unquote(value: &[u8]) -> Result<Key, Invalid> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value[1..].iter();
    loop {
        match rest.next() {
            Some(b'"') => break,
            Some(b'\\') => match rest.next() {
                Some(escaped @ (b'"' | b'\\')) => out.push(*escaped),
                _ => return Err(Invalid::Quoting),
            },
            Some(byte) => out.push(*byte),
            None => return Err(Invalid::Quoting),
        }
    }
    if rest.next().is_some() {
        return Err(Invalid::Quoting);
    }
    Key::bare(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_and_bare_forms_are_the_same_key() {
        // G-2
        assert_eq!(Key::parse(b"\"a-b-c\""), Key::parse(b"a-b-c"));
        assert_eq!(Key::parse(b"\"a\\\"b\\\\\"").unwrap().as_str(), "a\"b\\");
        assert_eq!(Key::parse(b"  abc \t").unwrap().as_str(), "abc");
        let quote = Key::parse(b"\"\\\"abc\"").unwrap();
        assert_eq!(Key::from_stored(quote.as_str()), Ok(quote), "a stored key comes back as it was");
    }

    #[test]
    fn malformed_keys_are_refused_with_the_reason() {
        // G-2
        assert_eq!(Key::parse(b""), Err(Invalid::Empty));
        assert_eq!(Key::parse(b"\"\""), Err(Invalid::Empty));
        assert_eq!(Key::parse(&[b'k'; 256]), Err(Invalid::TooLong { chars: 256 }));
        assert!(Key::parse(&[b'k'; 255]).is_ok());
        assert!(matches!(Key::parse(&vec![b'k'; 10_000_000]), Err(Invalid::TooLong { .. })));
        for bad in [&b"a b"[..], b"a\x00b", b"a\x7fb", "schl\u{fc}ssel".as_bytes(), b"a, b"] {
            assert!(matches!(Key::parse(bad), Err(Invalid::Character { .. })), "{bad:?}");
        }
        for bad in [&b"\"abc"[..], b"\"abc\"d", b"\"a\\x\"", b"\"a\";p=1", b"\"a\\"] {
            assert_eq!(Key::parse(bad), Err(Invalid::Quoting), "{bad:?}");
        }
    }

    #[test]
    fn guessable_keys_are_noticed_but_accepted() {
        // G-2
        let weakness = |text: &str| text.parse::<Key>().unwrap().weakness();
        assert_eq!(weakness("1763251200000"), Some(Weakness::Numeric));
        assert_eq!(weakness("order-7"), Some(Weakness::Short));
        assert_eq!(weakness("aaaaaaaaaaaaaaaaaaaaaa"), Some(Weakness::Repetitive));
        assert_eq!(weakness("550e8400-e29b-41d4-a716-446655440000"), None);
    }
}
