//! Fences: a resource takes no write from whoever was overtaken.
//!
//! Two operations on one resource are two keys, and neither knows of the other: a payment that timed out, the
//! refund that followed, and then the payment after all. Each asks for a token of the resource before it
//! begins, and hands it in with its write; a write below the last token is refused, in the transaction of
//! that write.
//!
//! These tokens are given for a resource and compared with its others. Tokens of operations
//! ([`lease::Token`](crate::lease::Token)) are another thing, and the types do not meet.
//!
//! Where the resource is a row of the caller's own, a guard in the statement often does: an insert that does
//! nothing if the row is there, an update that names the version or the status it expects. [`Guarded`] reads
//! what came of such a statement.

use std::fmt;
use std::str::FromStr;

use crate::mutant;

/// Longest name of a resource.
pub const RESOURCE_BYTES_MAX: usize = 512;

/// What is fenced: `order/1042`, `account/alice`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Box<str>);

impl Resource {
    /// 1 to [`RESOURCE_BYTES_MAX`] bytes without control characters.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let fits = (1..=RESOURCE_BYTES_MAX).contains(&text.len());
        if fits && !text.chars().any(char::is_control) { Ok(Self(text.into())) } else { Err(Invalid) }
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Resource {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why something names no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a resource has a name of 1 to {RESOURCE_BYTES_MAX} bytes without control characters")]
pub struct Invalid;

/// The number a resource gives who asks for it. Later ones are larger, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a write may go on.
#[must_use = "a write that was refused must not happen"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Nobody with a later token has written. From now on no earlier one may.
    Passed,
    /// Somebody with a later token has.
    Refused {
        /// That token.
        last: Token,
    },
}

/// Decides by the last token that wrote, if any did. Equal ones pass: a holder may write often.
pub fn pass(last: Option<Token>, token: Token) -> Passage {
    match last {
        Some(last) if token < last && !mutant::on("fence-lets-stale-pass") => Passage::Refused { last },
        _ => Passage::Passed,
    }
}

/// What came of a statement that names the state it expects.
#[must_use = "a statement that did nothing must be noticed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// It was as expected, and is changed.
    Made,
    /// It was not, and is as before: already there, another version, another status.
    Refused,
}

/// A guard that let more than one row through guards nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the statement changed {rows} rows; name one row by its key, and roll back")]
pub struct ManyRows {
    /// How many it changed.
    pub rows: u64,
}

impl Guarded {
    /// From the number of rows that a guarded statement changed.
    pub fn of_rows(rows: u64) -> Result<Self, ManyRows> {
        match rows {
            0 if mutant::on("guard-unread") => Ok(Self::Made),
            0 => Ok(Self::Refused),
            1 => Ok(Self::Made),
            rows => Err(ManyRows { rows }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_below_the_last_token_is_refused() {
        // G-70
        assert_eq!(pass(None, Token(1)), Passage::Passed);
        assert_eq!(pass(Some(Token(3)), Token(3)), Passage::Passed);
        assert_eq!(pass(Some(Token(3)), Token(4)), Passage::Passed);
        assert_eq!(pass(Some(Token(4)), Token(3)), Passage::Refused { last: Token(4) });
    }

    #[test]
    fn a_guard_that_let_nothing_or_too_much_through_is_noticed() {
        // G-71
        assert_eq!(Guarded::of_rows(1), Ok(Guarded::Made));
        assert_eq!(Guarded::of_rows(0), Ok(Guarded::Refused));
        assert_eq!(Guarded::of_rows(2), Err(ManyRows { rows: 2 }));
    }

    #[test]
    fn a_resource_has_a_name() {
        assert!(Resource::parse("order/1042 ä").is_ok());
        for bad in ["", "a\nb", &"x".repeat(RESOURCE_BYTES_MAX + 1)] {
            assert_eq!(Resource::parse(bad), Err(Invalid));
        }
    }
}
