//! Why an operator's wish is not granted, and what to do instead.

use semel::Timestamp;

use crate::shown::{Operation, State};
use crate::time;

/// The attempt may be having its effect right now.
pub(super) fn in_flight(seen: &Operation, now: Timestamp) -> String {
    let Operation { id, attempts, token, .. } = seen;
    let lease_until = time::short(&seen.lease_until);
    if seen.is_lapsed(now) && seen.recovery == "rerun" {
        return format!(
            "operation {id} has lapsed, and its recovery is `rerun`: the next attempt runs by itself; there is \
             nothing to settle"
        );
    }
    format!(
        "operation {id} is in flight: attempt {attempts} (token {token}) holds its lease until {lease_until} and may \
         be having its effect now. Wait for it to end. If its process is gone, the lease lapses then and the \
         operation becomes unknown: settle or free it after that"
    )
}

/// Only an unknown can be settled or freed. `None`: it may be one.
pub(super) fn not_unknown(seen: &Operation) -> Option<String> {
    let id = &seen.id;
    match seen.state {
        State::Unknown | State::InProgress => None,
        State::Completed => Some(format!(
            "operation {id} is completed: its outcome is known, and a stored outcome never changes"
        )),
        State::Released => Some(format!(
            "operation {id} is released: it certainly did not happen, and the next attempt may run already"
        )),
        State::Tombstone => {
            Some(format!("operation {id} ended and was purged: there is nothing left to settle"))
        }
    }
}

/// Only what has ended can be purged. `None`: it has.
pub(super) fn not_ended(seen: &Operation) -> Option<String> {
    let id = &seen.id;
    match seen.state {
        State::Completed | State::Released | State::Tombstone => None,
        State::InProgress => Some(format!(
            "operation {id} is in flight: only what has ended can be purged, or its key would be free while its \
             effect may happen. Wait for it to end"
        )),
        State::Unknown => Some(format!(
            "operation {id} is unknown: only what has ended can be purged. Settle it first: semel keys settle {id}"
        )),
    }
}

/// It is no longer what the operator saw.
pub(super) fn moved_on(found: &Operation) -> String {
    let Operation { id, state, attempts, token, .. } = found;
    format!(
        "operation {id} has moved on meanwhile: it is {} in attempt {attempts} (token {token}). Nothing was changed; \
         look at it again: semel keys show {id}",
        state.name()
    )
}

/// When an admin API must be waited for.
pub(super) fn not_yet_unknown(seen: &Operation, now: Timestamp) -> String {
    match seen.is_lapsed(now) && seen.recovery != "rerun" {
        true => format!(
            "the lease of operation {} lapsed at {}; the gateway calls it unknown within seconds. Try again then",
            seen.id,
            time::short(&seen.lease_until)
        ),
        false => in_flight(seen, now),
    }
}
