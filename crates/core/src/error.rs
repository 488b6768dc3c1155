//! What a store says when it cannot do what it was asked.
//!
//! Ask the error, never its text: may the same call be tried again, and may it already have
//! happened?

use std::fmt;

/// The cause, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// No connection, or it broke.
    Unreachable,
    /// No answer within the time-out.
    TimedOut,
    /// Locked or overloaded; later may work.
    Busy,
    /// The disk or quota is full.
    Full,
    /// What was to be written is larger than this store can ever keep as it is set up. Smaller things it takes.
    TooLarge,
    /// It takes no writes: a replica, a read-only file or file system.
    ReadOnly,
    /// It was restored from an older state; an operator must acknowledge before it is believed.
    WentBack,
    /// Its schema is newer than this build can read, or not Semel's.
    Schema,
    /// It holds something that cannot be read.
    Damaged,
    /// Credentials or privileges do not suffice.
    Denied,
    /// The address or a setting makes no sense.
    Misconfigured,
    /// It was closed by this process.
    Closed,
}

/// Whether the failed call may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It certainly did not.
    No,
    /// It may have: the answer got lost, not the call. Repeat it with the same nonce to find out.
    Unknown,
}

/// A failure of a store. The text says what happened and what to do about it, for logs and people
/// who operate; it is never sent to clients.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: Kind,
    applied: Applied,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error that certainly changed nothing.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, applied: Applied::No, message: message.into(), source: None }
    }

    /// The same error for a call that may have been applied.
    pub fn maybe_applied(mut self) -> Self {
        self.applied = Applied::Unknown;
        self
    }

    /// Keeps the cause.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The cause, by kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The same call may work later with nothing changed by anybody.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::TimedOut | Kind::Busy | Kind::Full | Kind::ReadOnly)
    }

    /// The store said for certain that it will never take this: nothing was written, and sending the same again is
    /// of no use.
    pub fn is_too_large(&self) -> bool {
        self.kind == Kind::TooLarge && !self.outcome_is_unknown()
    }

    /// The call may have taken effect. Only repeating it with the same nonce tells; reading does not.
    pub fn outcome_is_unknown(&self) -> bool {
        self.applied == Applied::Unknown
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.applied == Applied::Unknown {
            f.write_str(" (the write may have been applied)")?;
        }
        Ok(())
    }
}
