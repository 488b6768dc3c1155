//! An operation as an operator sees it: one shape, made of a store's record, written as JSON by the admin
//! API and by `semel keys`, and read back from the API.
//!
//! Bodies of answers can hold what customers said, so they are there only when asked for. Sealed ones
//! stay sealed: whoever may read them has the keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel::history::{Event, Kind};
use semel::outcome::{Body, Line, Unreadable};
use semel::{OperationId, Outcome, Record, Recovery, Timestamp, seal};
use serde::{Deserialize, Serialize};

use crate::time;

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum State {
    #[value(alias = "in-progress")]
    InProgress,
    Completed,
    Released,
    Unknown,
    Tombstone,
}

/// What became of a subject's key when all of the subject was purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SubjectKey {
    /// It is gone; what it sealed is unreadable, wherever a copy is.
    Forgotten,
    /// The subject had none.
    None,
    /// Nobody looked: no place of subjects' keys is configured, or none was named.
    NoPlace,
}

impl SubjectKey {
    pub(crate) fn of(forgotten: Option<semel::subject::Forgotten>) -> Self {
        match forgotten {
            Some(semel::subject::Forgotten::Key) => Self::Forgotten,
            Some(semel::subject::Forgotten::Nothing) => Self::None,
            None => Self::NoPlace,
        }
    }
}

/// The states by name.
pub(crate) const STATES: [(State, semel::State, &str); 5] = [
    (State::InProgress, semel::State::InProgress, "in_progress"),
    (State::Completed, semel::State::Completed, "completed"),
    (State::Released, semel::State::Released, "released"),
    (State::Unknown, semel::State::Unknown, "unknown"),
    (State::Tombstone, semel::State::Tombstone, "tombstone"),
];

impl State {
    fn row(self) -> &'static (State, semel::State, &'static str) {
        STATES.iter().find(|(ours, ..)| *ours == self).expect("the table has every state")
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().2
    }

    pub(crate) fn stored(self) -> semel::State {
        self.row().1
    }

    pub(crate) fn of(stored: semel::State) -> Self {
        let row = STATES.iter().find(|(_, theirs, _)| *theirs == stored);
        row.expect("the table has every state").0
    }
}

/// Whether bodies are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    Shown,
    /// Only their sizes are.
    Hidden,
}

/// One operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) tenant: Option<String>,
    pub(crate) route: String,
    pub(crate) key: String,
    pub(crate) state: State,
    pub(crate) token: u64,
    pub(crate) nonce: String,
    pub(crate) attempts: u32,
    pub(crate) recovery: String,
    pub(crate) subject: Option<String>,
    pub(crate) created_at: String,
    pub(crate) attempt_at: String,
    pub(crate) lease_until: String,
    /// Until then the newest attempt may still be on its way.
    pub(crate) may_run_until: String,
    pub(crate) settled_at: Option<String>,
    pub(crate) expires_at: Option<String>,
    pub(crate) possible_double_effect: bool,
    /// There when it was asked for by itself.
    #[serde(flatten)]
    pub(crate) rest: Option<Rest>,
}

/// What lists leave out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) outcome: Option<Answer>,
    pub(crate) history: Vec<Happening>,
    pub(crate) history_dropped: u32,
}

/// An entry of a history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Happening {
    pub(crate) at: String,
    pub(crate) what: String,
    pub(crate) token: u64,
    pub(crate) nonce: String,
    #[serde(default)]
    pub(crate) note: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<Answer>,
}

/// A stored answer, or a refused one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) trailers: Vec<(String, String)>,
    /// Nobody can say it of a sealed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redacted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_not_kept: Option<NotKept>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sealed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seal_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unreadable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stored_bytes: Option<u64>,
}

/// A body larger than its route keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NotKept {
    pub(crate) bytes: Option<u64>,
}

impl Operation {
    /// What a list shows.
    pub(crate) fn summary(record: &Record) -> Self {
        let (operation, scope) = (&record.operation, record.operation.scope());
        Self {
            id: operation.id().to_string(),
            namespace: scope.namespace().to_owned(),
            tenant: scope.tenant().map(str::to_owned),
            route: scope.route().to_owned(),
            key: operation.key().as_str().to_owned(),
            state: State::of(record.state),
            token: record.token.0,
            nonce: record.nonce.to_string(),
            attempts: record.attempts,
            recovery: recovery(record.terms.recovery).to_owned(),
            subject: record.subject.as_deref().map(str::to_owned),
            created_at: time::write(record.created_at),
            attempt_at: time::write(record.attempt_at),
            lease_until: time::write(record.lease_until),
            may_run_until: time::write(record.may_ask_at()),
            settled_at: record.settled_at.map(time::write),
            expires_at: record.expires_at().map(time::write),
            possible_double_effect: record.history.possible_double_effect(),
            rest: None,
        }
    }

    /// All of it.
    pub(crate) fn whole(record: &Record, bodies: Bodies) -> Self {
        let id = record.operation.id();
        let happening = |event: &Event| Happening::of(event, id, bodies);
        let rest = Rest {
            outcome: record.outcome.as_ref().map(|stored| Answer::of(stored, id, bodies)),
            history: record.history.events().iter().map(happening).collect(),
            history_dropped: record.history.dropped(),
        };
        Self { rest: Some(rest), ..Self::summary(record) }
    }

    pub(crate) fn operation_id(&self) -> anyhow::Result<OperationId> {
        let id = OperationId::from_hex(&self.id);
        id.ok_or_else(|| anyhow::anyhow!("the id {:?} is not one of an operation", self.id))
    }

    /// Until when its newest attempt may still be running, if that lies ahead.
    pub(crate) fn may_run_until(&self, now: Timestamp) -> Option<String> {
        let until = &self.may_run_until;
        time::read(until).filter(|at| now < *at).map(|_| time::short(until))
    }

    /// Whether its newest attempt's lease has passed with no outcome.
    pub(crate) fn is_lapsed(&self, now: Timestamp) -> bool {
        self.state == State::InProgress && time::read(&self.lease_until).is_some_and(|until| now >= until)
    }
}

impl Happening {
    fn of(event: &Event, id: OperationId, bodies: Bodies) -> Self {
        Self {
            at: time::write(event.at),
            what: what(event.kind).to_owned(),
            token: event.token.0,
            nonce: event.nonce.to_string(),
            note: event.note.clone(),
            evidence: event.evidence.as_ref().map(|stored| Answer::of(stored, id, bodies)),
        }
    }
}

impl Answer {
    /// Opened without a keyring, so that what is sealed stays so.
    fn of(stored: &Bytes, id: OperationId, bodies: Bodies) -> Self {
        let stored_bytes = Some(stored.len() as u64);
        match seal::open(stored, id, None) {
            Ok(outcome) => Self::open(&outcome, bodies),
            Err(Unreadable::KeyMissing { key } | Unreadable::SubjectKeyMissing { key }) => {
                Self { sealed: true, seal_key: Some(key), stored_bytes, ..Self::default() }
            }
            Err(damage) => Self { unreadable: Some(damage.to_string()), stored_bytes, ..Self::default() },
        }
    }

    fn open(outcome: &Outcome, bodies: Bodies) -> Self {
        let mut answer = Self {
            status: Some(outcome.status),
            headers: lines(&outcome.headers),
            trailers: lines(&outcome.trailers),
            redacted: Some(outcome.redacted),
            ..Self::default()
        };
        match &outcome.body {
            Body::NotKept { bytes } => answer.body_not_kept = Some(NotKept { bytes: *bytes }),
            Body::Kept(body) => {
                answer.body_bytes = Some(body.len() as u64);
                match std::str::from_utf8(body) {
                    _ if bodies == Bodies::Hidden => {}
                    Ok(text) => answer.body = Some(text.to_owned()),
                    Err(_) => answer.body_base64 = Some(STANDARD.encode(body)),
                }
            }
        }
        answer
    }
}

fn lines(lines: &[Line]) -> Vec<(String, String)> {
    let text = |line: &Line| (line.name.to_string(), String::from_utf8_lossy(&line.value).into_owned());
    lines.iter().map(text).collect()
}

fn recovery(recovery: Recovery) -> &'static str {
    match recovery {
        Recovery::Rerun => "rerun",
        Recovery::Hold => "hold",
        Recovery::Ask => "ask",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(outcome: &Outcome, bodies: Bodies) -> serde_json::Value {
        serde_json::to_value(Answer::open(outcome, bodies)).unwrap()
    }

    #[test]
    fn a_body_is_shown_only_when_asked_for() {
        let kept = Outcome::text("card 4242");
        assert!(!shown(&kept, Bodies::Hidden).to_string().contains("4242"));
        assert_eq!(shown(&kept, Bodies::Hidden)["body_bytes"], 9);
        assert_eq!(shown(&kept, Bodies::Shown)["body"], "card 4242");
        let binary = Outcome::bytes("application/octet-stream", vec![0xff, 0]);
        assert_eq!(shown(&binary, Bodies::Shown)["body_base64"], "/wA=");
    }
}
