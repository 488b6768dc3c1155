//! A broker that loses acknowledgements in both directions: what it took is sent to it again, and what was
//! applied is delivered again. It loses no message.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel::consumer::{Delivery, Receipt, Source};
use semel::inbox::{Horizon, Incoming, Offset};
use semel::message::Header;
use semel::outbox::{Facts, Term};
use semel::sinks::{About, Answer, Batch, Dedup, Line, Opened, Receipt as Said, Sink, Trouble};
use semel::store::Pending;

/// Of a hundred, in each direction.
const ACKS_LOST: u64 = 20;

/// Numbers from a seed. What the clients do is the same in each run; who asks the broker first is not.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// True so many times of a hundred.
    pub(super) fn comes(&mut self, of_a_hundred: u64) -> bool {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % 100 < of_a_hundred
    }
}

#[derive(Clone)]
pub(super) struct Broker(Arc<Mutex<Inside>>);

struct Inside {
    chance: Chance,
    queue: VecDeque<Kept>,
    out: HashMap<u64, Kept>,
    places: u64,
    receipts: u64,
    deliveries: u64,
}

#[derive(Clone)]
struct Kept {
    place: u64,
    id: String,
    payload: Bytes,
}

impl Broker {
    pub(super) fn new(seed: u64) -> Self {
        let (queue, out) = Default::default();
        let inside = Inside { chance: Chance::new(seed), queue, out, places: 0, receipts: 0, deliveries: 0 };
        Self(Arc::new(Mutex::new(inside)))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message. False if the acknowledgement got lost.
    pub(super) fn take(&self, id: String, payload: Bytes) -> bool {
        let mut inside = self.lock();
        inside.places += 1;
        let place = inside.places;
        inside.queue.push_back(Kept { place, id, payload });
        !inside.chance.comes(ACKS_LOST)
    }

    /// How often something was delivered.
    pub(super) fn deliveries(&self) -> u64 {
        self.lock().deliveries
    }

    /// Whether nothing waits and nothing is out.
    pub(super) fn is_quiet(&self) -> bool {
        let inside = self.lock();
        inside.queue.is_empty() && inside.out.is_empty()
    }

    /// Delivers everything to somebody who applies it and acknowledges, and keeps no ledger.
    pub(super) fn apply_all(&self, apply: impl Fn(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        loop {
            let Some((receipt, kept)) = self.lock().deliver() else { return Ok(()) };
            apply(&kept.payload)?;
            self.lock().acknowledge(receipt);
        }
    }
}

impl Inside {
    fn deliver(&mut self) -> Option<(u64, Kept)> {
        let kept = self.queue.pop_front()?;
        self.receipts += 1;
        self.deliveries += 1;
        self.out.insert(self.receipts, kept.clone());
        Some((self.receipts, kept))
    }

    fn acknowledge(&mut self, receipt: u64) {
        let lost = self.chance.comes(ACKS_LOST);
        if let Some(kept) = self.out.remove(&receipt)
            && lost
        {
            self.queue.push_back(kept);
        }
    }
}

impl Sink for Broker {
    fn about(&self) -> About {
        About { name: "demo", dedup: Dedup::Receiver, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        let line: Box<dyn Line> = Box::new(self.clone());
        Box::pin(std::future::ready(Ok(Opened { line, landed: None })))
    }
}

impl Line for Broker {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Said>> {
        let lost = || Said::Failed { reason: "the acknowledgement got lost".into(), after: None };
        let said =
            batch.parcels.iter().map(|parcel| match self.take(parcel.id.to_string(), parcel.body.clone()) {
                true => Said::Landed,
                false => lost(),
            });
        let said = said.collect();
        Box::pin(std::future::ready(said))
    }
}

impl Source for Broker {
    fn horizon(&mut self) -> Pending<'_, Horizon> {
        Box::pin(std::future::ready(Ok(Horizon::Within(Duration::from_secs(60)))))
    }

    fn next(&mut self, limit: usize, wait: Duration) -> Pending<'_, Vec<Delivery>> {
        let deliveries: Vec<Delivery> = {
            let mut inside = self.lock();
            std::iter::from_fn(|| inside.deliver())
                .take(limit)
                .map(|(receipt, kept)| delivery(receipt, kept))
                .collect()
        };
        Box::pin(async move {
            if deliveries.is_empty() {
                tokio::time::sleep(wait.min(Duration::from_millis(2))).await;
            }
            Ok(deliveries)
        })
    }

    fn extend_every(&self) -> Option<Duration> {
        None
    }

    fn extend<'a>(&'a mut self, _receipts: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn ack<'a>(&'a mut self, receipts: &'a [Receipt]) -> Pending<'a, ()> {
        let mut inside = self.lock();
        receipts.iter().for_each(|receipt| inside.acknowledge(receipt.0));
        Box::pin(std::future::ready(Ok(())))
    }

    fn nack<'a>(&'a mut self, receipts: &'a [Receipt], _delay: Duration) -> Pending<'a, ()> {
        let mut inside = self.lock();
        for receipt in receipts {
            if let Some(kept) = inside.out.remove(&receipt.0) {
                inside.queue.push_back(kept);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn fenced<'a>(&'a mut self, _offsets: &'a [Offset]) -> Pending<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn delivery(receipt: u64, kept: Kept) -> Delivery {
    let message = Incoming {
        source: "orders".into(),
        place: kept.place.to_string(),
        subject: "orders.paid".into(),
        key: None,
        headers: vec![Header { name: "semel-id".into(), value: kept.id }],
        payload: kept.payload,
    };
    Delivery { receipt: Receipt(receipt), message, position: None }
}
