//! What comes out of running an operation: for the effect to report, and for the caller to hear.

use std::time::Duration;

use crate::Outcome;
use crate::fingerprint::Changes;
use crate::outcome::Unreadable;

/// How an attempt ended, as the effect reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was decided, for better or worse: this is the outcome, errors included.
    Done(Outcome),
    /// The same, to be remembered at least this long from the operation's creation, if that is longer
    /// than the policy's TTL; up to [`TTL_MAX`](crate::policy::TTL_MAX).
    DoneKept(Outcome, Duration),
    /// Nothing happened, for certain; the next attempt may run. The answer is passed on, not kept.
    NothingHappened(Outcome),
    /// It may or may not have happened.
    Unknown(String),
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        Self::Done(outcome)
    }
}

/// Why an effect has no outcome, for effects that end in a `Result`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// Nothing happened, for certain.
    #[error("nothing happened: {0}")]
    NothingHappened(String),
    /// It may or may not have happened.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

impl From<Result<Outcome, NotDone>> for Ending {
    fn from(result: Result<Outcome, NotDone>) -> Self {
        match result {
            Ok(outcome) => Self::Done(outcome),
            Err(NotDone::NothingHappened(why)) => Self::NothingHappened(Outcome::text(why)),
            Err(NotDone::Unknown(why)) => Self::Unknown(why),
        }
    }
}

/// An answer for the caller, with where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What to tell the client.
    pub outcome: Outcome,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The effect ran now, and its outcome is stored.
    Fresh,
    /// The effect ran before; this is what it answered then.
    Replayed,
    /// The effect ran now and reported that nothing happened; nothing is stored.
    NothingHappened,
    /// The effect ran now without protection: the store was away and the policy says open.
    Unprotected,
}

/// Why there is no answer. None of these ran the effect to a stored end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The key was used for another request.
    #[error("this key was used for a different request")]
    Mismatch(Changes),
    /// Another attempt is running.
    #[error("another attempt of this operation is running; come back in {retry_after:?}")]
    InFlight {
        /// When to come back.
        retry_after: Duration,
    },
    /// It may or may not have happened; nothing runs until that is settled.
    #[error("whether this operation happened is not known yet; come back in {retry_after:?}")]
    OutcomeUnknown {
        /// When to come back.
        retry_after: Duration,
    },
    /// It happened, and its answer was too large to keep.
    #[error("this operation completed with status {status}; its answer was too large to keep")]
    BodyNotKept {
        /// The original status.
        status: u16,
    },
    /// It happened, and its answer cannot be read back.
    #[error("this operation completed; its stored answer cannot be read")]
    Unreadable(Unreadable),
    /// It ended, and its answer was purged on request.
    #[error("this operation ended; its answer was purged")]
    Purged,
    /// The store cannot be reached, or must not be believed; nothing ran.
    #[error("operations cannot be recorded at the moment; nothing was run; come back in {retry_after:?}")]
    StoreUnavailable {
        /// When to come back.
        retry_after: Duration,
    },
    /// As many operations are under way in this process as may be; nothing ran.
    #[error("too many operations are under way; nothing was run; come back in {retry_after:?}")]
    TooManyOperations {
        /// When to come back.
        retry_after: Duration,
    },
    /// The stored fingerprint was made with a key this process has not loaded yet; nothing ran.
    #[error(
        "the stored fingerprint was made with a newer key, version {version}; come back in {retry_after:?}"
    )]
    KeyNotLoaded {
        /// That version. Ask [`Once::fingerprinter`](crate::Once::fingerprinter) again to load it.
        version: u32,
        /// When to come back.
        retry_after: Duration,
    },
    /// The stored fingerprint was made with a key that is gone; nothing ran.
    #[error("the stored fingerprint was made with key version {version}, which is gone")]
    Incomparable {
        /// That version.
        version: u32,
    },
}
