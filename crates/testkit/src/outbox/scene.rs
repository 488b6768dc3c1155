//! A shop that tells others what it sold: what every case is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::outbox::{Cursor, Entry, Found, Judged, Lane, Saved, Settled, Taken, Verdict};
use semel_core::{Message, MessageId, Nonce, Outbox, Topic};

use super::{Open, Rig};
use crate::scene::{MINUTE, micros};

/// How long a lane is held here: far longer than a case takes.
pub(super) const LEASE: i64 = 10 * MINUTE;

/// More rounds than any case needs to read an outbox empty.
const ROUNDS_MAX: usize = 2000;

/// A message for the topic most cases use.
pub(super) fn message(key: &str, text: &str) -> Message {
    to("orders.paid", text).key(key)
}

/// A message without a key.
pub(super) fn to(topic: &str, text: &str) -> Message {
    Message::new(Topic::parse(topic).expect("the topic is one"), text.to_owned())
}

pub(super) fn text(entry: &Entry) -> String {
    String::from_utf8(entry.message.payload.to_vec()).expect("payloads here are text")
}

pub(super) fn texts(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(text).collect()
}

pub(super) fn ids(entries: &[Entry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.message.id).collect()
}

pub(super) fn sent(count: usize) -> Vec<Settled> {
    vec![Settled::Sent; count]
}

pub(super) fn later(minutes: i64) -> Settled {
    Settled::Later { reason: "the broker is away".into(), again_in: micros(minutes * MINUTE) }
}

pub(super) fn dead() -> Settled {
    Settled::Dead { reason: "the broker will never take it".into() }
}

/// A rig with short words for what cases do. Every answer must come.
#[derive(Clone)]
pub(super) struct Post(pub(super) Arc<dyn Rig>);

impl Post {
    pub(super) fn outbox(&self) -> Arc<dyn Outbox> {
        self.0.outbox()
    }

    pub(super) fn shift(&self, micros: i64) {
        self.0.shift_clock(micros);
    }

    /// Every lease given until now lapses.
    pub(super) fn lapse(&self) {
        self.shift(LEASE + MINUTE);
    }

    pub(super) async fn hold(&self, messages: &[Message]) -> Box<dyn Open> {
        self.0.begin(messages.to_vec()).await.expect("messages can be written")
    }

    /// Writes in one transaction and commits.
    pub(super) async fn write(&self, messages: &[Message]) {
        self.hold(messages).await.commit().await;
    }

    pub(super) async fn ask(&self, lane: Lane) -> Taken {
        let asked = self.outbox().take(lane, Nonce::random(), lease()).await.map_err(drop);
        asked.expect("asking for a lane is answered")
    }

    /// Asks for a lane, and must get it.
    pub(super) async fn take(&self, lane: Lane) -> Box<dyn Cursor> {
        match self.ask(lane).await {
            Taken::Yours(cursor) => cursor,
            Taken::Held { wait, .. } => panic!("the lane is free, and not held for {wait:?}"),
            Taken::Stopped { why } => panic!("the lane is not stopped: {why}"),
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        (0..self.outbox().facts().lanes).map(Lane)
    }

    pub(super) async fn find(&self, id: MessageId) -> Option<Found> {
        self.outbox().find(id).await.expect("looking for a message is answered")
    }

    pub(super) async fn lane_of(&self, id: MessageId) -> Lane {
        match self.find(id).await {
            Some(Found::Waiting(lane, _)) => lane,
            other => panic!("a message just written waits, and is not {other:?}"),
        }
    }

    pub(super) async fn judge(&self, id: MessageId, verdict: Verdict) -> Judged {
        self.outbox().judge(id, &verdict).await.expect("a verdict is answered")
    }

    /// A lane, and so many keys whose messages all are in it. The outbox is empty afterwards.
    pub(super) async fn one_lane(&self, count: usize) -> (Lane, Vec<String>) {
        let lanes = usize::from(self.outbox().facts().lanes);
        let probes: Vec<Message> =
            (0..lanes * count).map(|n| message(&format!("customer-{n}"), "probe")).collect();
        self.write(&probes).await;
        let mut by_lane: BTreeMap<Lane, Vec<String>> = BTreeMap::new();
        for probe in &probes {
            by_lane.entry(self.lane_of(probe.id).await).or_default().extend(probe.key.clone());
        }
        let mut relay = self.relay().await;
        relay.send_all().await;
        assert_eq!(relay.sent.len(), probes.len());
        relay.give_back().await;
        let found = by_lane.into_iter().find(|(_, keys)| keys.len() >= count);
        let (lane, mut keys) = found.expect("some lane has as many as all have on average");
        keys.truncate(count);
        (lane, keys)
    }

    /// Takes every lane.
    pub(super) async fn relay(&self) -> Relay {
        let mut cursors = Vec::new();
        for lane in self.lanes() {
            cursors.push(self.take(lane).await);
        }
        Relay { cursors, sent: Vec::new(), aside: Vec::new() }
    }

    /// Housekeeping until there is none left; how many messages became due.
    pub(super) async fn tend(&self) -> u64 {
        let mut due = 0;
        for _ in 0..ROUNDS_MAX {
            let tended = self.outbox().tend().await.expect("housekeeping is answered");
            due += tended.due;
            if !tended.more {
                return due;
            }
        }
        panic!("housekeeping has no end");
    }
}

pub(super) fn lease() -> Duration {
    micros(LEASE)
}

/// Reads a batch; the answer must come.
pub(super) async fn next(cursor: &mut Box<dyn Cursor>, limit: usize) -> Vec<Entry> {
    cursor.next(limit).await.expect("reading is answered")
}

/// Saves; the cursor must still hold its lane.
pub(super) async fn save(cursor: &mut Box<dyn Cursor>, settled: &[Settled]) {
    assert_eq!(cursor.save(settled).await.expect("a save is answered"), Saved::Kept);
}

/// Holds every lane, and does what a relay does.
pub(super) struct Relay {
    pub(super) cursors: Vec<Box<dyn Cursor>>,
    /// What was settled as sent, in that order.
    pub(super) sent: Vec<Entry>,
    /// What was settled otherwise, in that order.
    pub(super) aside: Vec<(Entry, Settled)>,
}

impl Relay {
    /// Reads until nothing is left to read now, and settles as told; what is behind stays behind.
    pub(super) async fn run(&mut self, limit: usize, mut judge: impl FnMut(&Entry) -> Settled) {
        for _ in 0..ROUNDS_MAX {
            let mut idle = true;
            for cursor in &mut self.cursors {
                let entries = next(cursor, limit).await;
                assert!(entries.len() <= limit, "{} entries of at most {limit}", entries.len());
                let settled = settle(&entries, &mut judge);
                if entries.is_empty() {
                    continue;
                }
                idle = false;
                save(cursor, &settled).await;
                for (entry, settled) in entries.into_iter().zip(settled) {
                    match settled {
                        Settled::Sent => self.sent.push(entry),
                        other => self.aside.push((entry, other)),
                    }
                }
            }
            if idle {
                return;
            }
        }
        panic!("an outbox nobody writes to has no end");
    }

    pub(super) async fn send_all(&mut self) {
        self.run(100, |_| Settled::Sent).await;
    }

    pub(super) async fn give_back(self) {
        for cursor in self.cursors {
            cursor.give_back().await.expect("giving back is answered");
        }
    }

    /// What was sent of a key, as text.
    pub(super) fn sent_of(&self, key: &str) -> Vec<String> {
        self.sent.iter().filter(|entry| entry.message.key.as_deref() == Some(key)).map(text).collect()
    }
}

/// What a relay makes of a batch: a failure holds up what follows of its key.
pub(super) fn settle(entries: &[Entry], mut judge: impl FnMut(&Entry) -> Settled) -> Vec<Settled> {
    let mut failed: BTreeSet<String> = BTreeSet::new();
    let mut settle = |entry: &Entry| {
        let key = entry.message.key.as_ref();
        if entry.behind || key.is_some_and(|key| failed.contains(key)) {
            return Settled::Behind;
        }
        let settled = judge(entry);
        if settled != Settled::Sent {
            failed.extend(key.cloned());
        }
        settled
    };
    entries.iter().map(&mut settle).collect()
}
