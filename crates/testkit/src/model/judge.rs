//! What no single step may do, seen from outside the functions that decide it.

use semel_core::Holder;
use semel_core::claim::{Claim, Request};
use semel_core::record::{Record, State, Verb};
use semel_core::verbs::{
    Change, Complete, Completion, MarkUnknown, Release, Renew, Renewal, Settle, Witness,
};

/// A verb whose steps can be judged from outside.
pub(super) trait Judged: Verb {
    /// The attempt that claims to be the newest.
    fn writer(&self) -> Option<Holder>;
    fn accepted(answer: &Self::Answer) -> bool;
}

impl Judged for Request {
    fn writer(&self) -> Option<Holder> {
        None
    }

    fn accepted(answer: &Claim) -> bool {
        matches!(answer, Claim::Granted(_))
    }
}

impl Judged for Renew {
    fn writer(&self) -> Option<Holder> {
        Some(self.holder)
    }

    fn accepted(answer: &Renewal) -> bool {
        matches!(answer, Renewal::Kept { .. })
    }
}

impl Judged for Complete {
    fn writer(&self) -> Option<Holder> {
        Some(self.holder)
    }

    fn accepted(answer: &Completion) -> bool {
        *answer == Completion::Stored
    }
}

impl Judged for Release {
    fn writer(&self) -> Option<Holder> {
        Some(self.holder)
    }

    fn accepted(answer: &Change) -> bool {
        *answer == Change::Made
    }
}

impl Judged for MarkUnknown {
    fn writer(&self) -> Option<Holder> {
        match self.witness {
            Witness::Holder(holder) => Some(holder),
            Witness::Lapse { .. } => None,
        }
    }

    fn accepted(answer: &Change) -> bool {
        *answer == Change::Made
    }
}

impl Judged for Settle {
    fn writer(&self) -> Option<Holder> {
        None
    }

    fn accepted(answer: &Change) -> bool {
        *answer == Change::Made
    }
}

/// The rule a step broke, if any.
pub(super) fn judge(
    before: Option<&Record>,
    after: Option<&Record>,
    writer: Option<Holder>,
    accepted: bool,
) -> Option<&'static str> {
    let before = before?;
    let Some(after) = after else { return Some("a record is forgotten") };
    let changed = (after.state, &after.outcome) != (before.state, &before.outcome);
    let stale = writer.is_some_and(|writer| writer != before.holder());
    let moved = changed || after.holder() != before.holder() || after.lease_until != before.lease_until;
    if before.state == State::Completed && changed {
        Some("a completed outcome changed")
    } else if stale && (accepted || moved) {
        Some("a stale attempt was believed")
    } else if before.state == State::Unknown && after.state == State::InProgress {
        Some("an unknown was run again before it was settled")
    } else if after.token < before.token || (after.nonce != before.nonce && after.token == before.token) {
        Some("a token was given twice or went back")
    } else {
        None
    }
}
