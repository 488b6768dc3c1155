//! A record as the admin API shows it.
//!
//! Bodies of outcomes and of evidence can hold what customers said, so they are shown only when asked
//! for. Sealed ones stay sealed: whoever may read them has the keys.

use bytes::Bytes;
use semel::history::{Event, Kind};
use semel::outcome::Unreadable;
use semel::record::Recovery;
use semel::{OperationId, Record, State, seal};
use serde_json::{Value, json};

use crate::json::{self, Bodies};

/// The states by name.
pub(crate) const STATES: [(&str, State); 5] = [
    ("in_progress", State::InProgress),
    ("completed", State::Completed),
    ("released", State::Released),
    ("unknown", State::Unknown),
    ("tombstone", State::Tombstone),
];

pub(crate) fn state(state: State) -> &'static str {
    STATES.iter().find(|(_, each)| *each == state).map_or("other", |(name, _)| name)
}

/// Without history and outcome, for lists.
pub(crate) fn summary(record: &Record) -> Value {
    let scope = record.operation.scope();
    json!({
        "id": record.operation.id().to_string(),
        "namespace": scope.namespace(),
        "tenant": scope.tenant(),
        "route": scope.route(),
        "key": record.operation.key().as_str(),
        "state": state(record.state),
        "token": record.token.0,
        "nonce": record.nonce.to_string(),
        "attempts": record.attempts,
        "recovery": match record.terms.recovery {
            Recovery::Rerun => "rerun",
            Recovery::Hold => "hold",
            Recovery::Ask => "ask",
        },
        "subject": record.subject,
        "created_at": json::time(record.created_at),
        "attempt_at": json::time(record.attempt_at),
        "lease_until": json::time(record.lease_until),
        "may_run_until": json::time(record.may_ask_at()),
        "settled_at": record.settled_at.map(json::time),
        "expires_at": record.expires_at().map(json::time),
        "possible_double_effect": record.history.possible_double_effect(),
    })
}

/// The whole record.
pub(crate) fn whole(record: &Record, bodies: Bodies) -> Value {
    let id = record.operation.id();
    let mut shown = summary(record);
    shown["outcome"] = record.outcome.as_ref().map_or(Value::Null, |stored| outcome(stored, id, bodies));
    shown["history"] = record.history.events().iter().map(|each| event(each, id, bodies)).collect();
    shown["history_dropped"] = record.history.dropped().into();
    shown
}

fn event(event: &Event, id: OperationId, bodies: Bodies) -> Value {
    let mut shown = json!({
        "at": json::time(event.at),
        "what": what(event.kind),
        "token": event.token.0,
        "nonce": event.nonce.to_string(),
        "note": event.note,
    });
    if let Some(evidence) = &event.evidence {
        shown["evidence"] = outcome(evidence, id, bodies);
    }
    shown
}

/// Opened without a keyring, so that what is sealed stays so.
fn outcome(stored: &Bytes, id: OperationId, bodies: Bodies) -> Value {
    match seal::open(stored, id, None) {
        Ok(outcome) => json::outcome(&outcome, bodies),
        Err(Unreadable::KeyMissing { key }) => {
            json!({ "sealed": true, "seal_key": key, "stored_bytes": stored.len() })
        }
        Err(unreadable) => json!({ "unreadable": unreadable.to_string(), "stored_bytes": stored.len() }),
    }
}

fn what(kind: Kind) -> &'static str {
    match kind {
        Kind::Lapsed => "lapsed",
        Kind::TakenOver => "taken_over",
        Kind::ReportedUnknown => "reported_unknown",
        Kind::Released => "released",
        Kind::Reclaimed => "reclaimed",
        Kind::LateOutcome => "late_outcome",
        Kind::RefusedOutcome => "refused_outcome",
        Kind::SettledDone => "settled_done",
        Kind::SettledNever => "settled_never",
        Kind::Purged => "purged",
        _ => "other",
    }
}
