//! What is told of an outbox: the same to people and to machines.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel::Message;
use semel::outbox::{Aside, Entry, Facts, Lane, Letter, Overview};
use serde::Serialize;

use crate::time;

/// The state of an outbox.
#[derive(Serialize)]
pub(super) struct Status {
    pub(super) engine: &'static str,
    pub(super) store_id: String,
    /// Why nothing is published, if nothing is.
    pub(super) stopped: Option<String>,
    pub(super) waiting: u64,
    pub(super) aside: u64,
    pub(super) dead: u64,
    pub(super) delayed: u64,
    /// The counts are at least this.
    pub(super) more: bool,
    pub(super) lanes: Vec<LaneShown>,
    pub(super) backlog: Vec<BacklogShown>,
}

#[derive(Serialize)]
pub(super) struct LaneShown {
    pub(super) lane: u16,
    pub(super) epoch: u64,
    pub(super) holder: Option<String>,
    pub(super) lease_until: Option<String>,
}

#[derive(Serialize)]
pub(super) struct BacklogShown {
    pub(super) topic: String,
    pub(super) lane: u16,
    pub(super) waiting: u64,
    pub(super) lag_seconds: Option<f64>,
    pub(super) aside: u64,
    pub(super) dead: u64,
}

impl Status {
    pub(super) fn of(facts: &Facts, overview: &Overview) -> Self {
        let total = |count: fn(&semel::outbox::Backlog) -> u64| overview.backlog.iter().map(count).sum();
        let lanes = overview.lanes.iter().map(|lane| LaneShown {
            lane: lane.lane.0,
            epoch: lane.epoch,
            holder: lane.holder.map(|holder| holder.to_string()),
            lease_until: lane.lease_until.map(time::write),
        });
        let backlog = overview.backlog.iter().map(|one| BacklogShown {
            topic: one.topic.to_string(),
            lane: one.lane.0,
            waiting: one.waiting,
            lag_seconds: one.oldest.map(|age| age.as_secs_f64()),
            aside: one.aside,
            dead: one.dead,
        });
        Self {
            engine: facts.engine,
            store_id: facts.store_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            stopped: overview.stopped.clone(),
            waiting: total(|one| one.waiting),
            aside: total(|one| one.aside),
            dead: total(|one| one.dead),
            delayed: overview.delayed,
            more: overview.more,
            lanes: lanes.collect(),
            backlog: backlog.collect(),
        }
    }
}

/// A message, wherever it is.
#[derive(Serialize)]
pub(super) struct Shown {
    pub(super) id: String,
    pub(super) state: &'static str,
    pub(super) lane: Option<u16>,
    pub(super) sequence: Option<u64>,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) tries: u32,
    pub(super) reason: Option<String>,
    pub(super) since: Option<String>,
    pub(super) again_at: Option<String>,
    pub(super) deliver_after: Option<String>,
    pub(super) content_type: String,
    pub(super) payload_bytes: usize,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) correlation: Option<String>,
    pub(super) causation: Option<String>,
    pub(super) trace_parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload_base64: Option<String>,
}

impl Shown {
    pub(super) fn delayed(message: &Message) -> Self {
        Self {
            id: message.id.to_string(),
            state: "delayed",
            lane: None,
            sequence: None,
            topic: message.topic.to_string(),
            key: message.key.clone(),
            tries: 0,
            reason: None,
            since: None,
            again_at: None,
            deliver_after: message.deliver_after.map(time::write),
            content_type: message.content_type.clone(),
            payload_bytes: message.payload.len(),
            headers: message
                .headers
                .iter()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
            correlation: message.correlation.clone(),
            causation: message.causation.clone(),
            trace_parent: message.trace_parent.clone(),
            payload: None,
            payload_base64: None,
        }
    }

    pub(super) fn waiting(lane: Lane, entry: &Entry) -> Self {
        Self {
            state: "waiting",
            lane: Some(lane.0),
            sequence: Some(entry.sequence),
            tries: entry.tries,
            ..Self::delayed(&entry.message)
        }
    }

    pub(super) fn letter(letter: &Letter) -> Self {
        Self {
            state: match letter.aside {
                Aside::Later => "later",
                Aside::Dead => "dead",
                Aside::Behind => "behind",
            },
            reason: Some(letter.reason.clone()).filter(|reason| !reason.is_empty()),
            since: Some(time::write(letter.since)),
            again_at: letter.again_at.map(time::write),
            ..Self::waiting(letter.lane, &letter.entry)
        }
    }

    pub(super) fn reveal(&mut self, message: &Message) {
        match std::str::from_utf8(&message.payload) {
            Ok(text) => self.payload = Some(text.to_owned()),
            Err(_) => self.payload_base64 = Some(STANDARD.encode(&message.payload)),
        }
    }
}
