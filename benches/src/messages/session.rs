//! A relay at work on one outbox and one broker, and when each message landed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use semel_core::Message;
use semel_core::message::Topic;
use semel_core::outbox::{Facts, Term};
use semel_core::runtime::Tokio;
use semel_workers::Relay;
use semel_workers::relay::{Ended, Settings, Tally};
use semel_workers::sinks::{About, Answer, Batch, Line, Opened, Parcel, Receipt, Sink, Trouble};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::broker::{Broker, TOPIC};
use super::shop::{Effect, Shop};
use super::{KEYS, PAYLOAD_BYTES};

/// Longest wait for a relay to have begun, or to have published what there is.
const DRAIN_MAX: Duration = Duration::from_secs(120);
/// Messages before the first that counts: a few for each lane.
const WARM_UP: u64 = 200;
/// The number of a message nobody times.
const UNTIMED: u64 = u64::MAX;
const LOOK: Duration = Duration::from_millis(1);

/// A message of so many bytes that carries its number.
pub(super) fn message(number: u64, key: u64) -> Message {
    let mut payload = vec![b'x'; PAYLOAD_BYTES];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    let topic = Topic::parse(TOPIC).expect("the topic is plain");
    Message::new(topic, payload)
        .key(format!("customer-{}", key % KEYS))
        .content_type("application/octet-stream")
}

/// Messages nobody times, for keys from `from` on.
pub(super) fn messages(from: u64, count: u64) -> Vec<Message> {
    (from..from + count).map(|key| message(UNTIMED, key)).collect()
}

/// When messages were committed and when they landed, by their numbers.
pub(super) struct Times {
    began: Instant,
    committed: Vec<AtomicU64>,
    landed: Vec<AtomicU64>,
}

impl Times {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let empty = || (0..count).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { began: Instant::now(), committed: empty(), landed: empty() })
    }

    pub(super) fn committed(&self, number: u64) {
        self.note(&self.committed, number);
    }

    fn landed(&self, parcel: &Parcel) {
        let number = parcel.body.first_chunk().map_or(UNTIMED, |bytes| u64::from_le_bytes(*bytes));
        self.note(&self.landed, number);
    }

    fn note(&self, times: &[AtomicU64], number: u64) {
        let slot = usize::try_from(number).ok().and_then(|number| times.get(number));
        if let Some(slot) = slot {
            slot.store(self.began.elapsed().as_micros().max(1) as u64, Ordering::Relaxed);
        }
    }

    /// How long each message took from its commit to the broker. One that landed before its commit was
    /// heard of took no time.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let both = self.committed.iter().zip(&self.landed);
        let both = both.map(|(from, to)| (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed)));
        both.filter(|(from, to)| *from > 0 && *to > 0)
            .map(|(from, to)| Duration::from_micros(to.saturating_sub(from)))
            .collect()
    }
}

/// A sink, and somebody who looks at a clock.
struct Watched {
    sink: Arc<dyn Sink>,
    times: Arc<Times>,
}

struct WatchedLine {
    line: Box<dyn Line>,
    times: Arc<Times>,
}

impl Sink for Watched {
    fn about(&self) -> About {
        self.sink.about()
    }

    fn open(&self, outbox: &Facts, term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        let opened = self.sink.open(outbox, term);
        Box::pin(async move {
            let Opened { line, landed } = opened.await?;
            Ok(Opened { line: Box::new(WatchedLine { line, times: self.times.clone() }), landed })
        })
    }
}

impl Line for WatchedLine {
    fn is_atomic(&self) -> bool {
        self.line.is_atomic()
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(async move {
            let receipts = self.line.publish(batch).await;
            let landed = batch.parcels.iter().zip(&receipts).filter(|(_, one)| **one == Receipt::Landed);
            landed.for_each(|(parcel, _)| self.times.landed(parcel));
            receipts
        })
    }
}

/// A relay at work.
pub(super) struct Session {
    pub(super) tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Ended>>,
    before: u64,
}

impl Session {
    /// Starts a relay as it comes. It holds no lane yet.
    pub(super) async fn start(shop: &Shop, broker: &Broker, times: Arc<Times>) -> Result<Self> {
        let outbox = shop.outbox().await?;
        let sink = Arc::new(Watched { sink: broker.sink().await?, times });
        let relay = Relay::new(outbox, sink, Arc::new(Tokio::new()), Settings::default())?;
        let tally = relay.tally();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
        Ok(Self { tally, stop, task, before: 0 })
    }

    /// Starts one and waits until it has published something in its lanes.
    pub(super) async fn warm(shop: &Shop, broker: &Broker, times: Arc<Times>) -> Result<Self> {
        let mut session = Self::start(shop, broker, times).await?;
        let mut writers = shop.writers(1).await?;
        writers[0].transact(Effect::Nothing, &messages(0, WARM_UP)).await?;
        session.until_published(WARM_UP).await?;
        session.before = WARM_UP;
        Ok(session)
    }

    /// Published since it was warm.
    pub(super) fn published(&self) -> u64 {
        self.tally.published.load(Ordering::Relaxed).saturating_sub(self.before)
    }

    pub(super) async fn until_published(&self, count: u64) -> Result<()> {
        let began = Instant::now();
        while self.published() < count {
            ensure!(!self.task.is_finished(), "the relay ended");
            ensure!(began.elapsed() < DRAIN_MAX, "{} of {count} were published", self.published());
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        let Tally { set_aside, dead, .. } = &*self.tally;
        let astray = set_aside.load(Ordering::Relaxed) + dead.load(Ordering::Relaxed);
        ensure!(astray == 0, "{astray} messages were not published");
        let _ = self.stop.send(());
        Ok(self.task.await.context("the relay panicked")??)
    }
}
