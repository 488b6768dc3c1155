//! The relay over the reference outbox, in tokio's time: hours pass at once.

mod atomic;
mod leases;
mod order;
mod trouble;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::outbox::{Aside, Facts, Letter, Term};
use semel_core::runtime::Tokio;
use semel_core::{MemoryOutbox, Message, MessageId, Outbox, Topic};
use semel_testkit::ManualClock;
use semel_workers::relay::{Ended, Relay, Retry, Settings, Tally};
use semel_workers::sinks::{
    About, Answer, Batch, Dedup, Line, Opened, Parcel, Receipt, Sink, Trouble, in_order,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// An outbox whose clock is tokio's.
fn outbox(lanes: u16) -> Arc<MemoryOutbox> {
    Arc::new(MemoryOutbox::with_clock(lanes, ManualClock::in_tokio_time()))
}

fn message(key: &str, text: impl Into<String>) -> Message {
    Message::new(Topic::parse("orders").unwrap(), text.into()).key(key)
}

/// A relay at work.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), Ended>>,
    tally: Arc<Tally>,
}

impl Running {
    fn start(outbox: Arc<dyn Outbox>, sink: Arc<dyn Sink>, settings: Settings) -> Self {
        let relay = Relay::new(outbox, sink, Arc::new(Tokio::new()), settings).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let tally = relay.tally();
        let task = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
        Self { stop: Some(stop), task, tally }
    }

    async fn stop(mut self) -> Result<(), Ended> {
        drop(self.stop.take());
        self.task.await.unwrap()
    }

    fn published(&self) -> u64 {
        self.tally.published.load(Ordering::Relaxed)
    }
}

/// Waits for a condition, for almost three simulated hours at most.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came: {what}");
}

/// What a sink does with a parcel, by how often it was asked before.
type Script = Box<dyn Fn(&Parcel, u32) -> Receipt + Send + Sync>;

/// A sink that writes down what landed.
struct Recorder {
    landed: Mutex<Vec<Parcel>>,
    asked: Mutex<std::collections::HashMap<MessageId, u32>>,
    script: Script,
    /// How long each message takes.
    takes: Duration,
}

impl Recorder {
    fn new(script: impl Fn(&Parcel, u32) -> Receipt + Send + Sync + 'static) -> Arc<Self> {
        Self::slow(Duration::from_micros(100), script)
    }

    fn slow(takes: Duration, script: impl Fn(&Parcel, u32) -> Receipt + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { landed: Mutex::default(), asked: Mutex::default(), script: Box::new(script), takes })
    }

    fn taking_all() -> Arc<Self> {
        Self::new(|_, _| Receipt::Landed)
    }

    fn count(&self) -> usize {
        self.landed.lock().unwrap().len()
    }

    fn texts(&self) -> Vec<String> {
        let landed = self.landed.lock().unwrap();
        landed.iter().map(|parcel| String::from_utf8(parcel.body.to_vec()).unwrap()).collect()
    }

    fn ids(&self) -> Vec<MessageId> {
        self.landed.lock().unwrap().iter().map(|parcel| parcel.id).collect()
    }

    async fn send(&self, parcel: &Parcel) -> Receipt {
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let asked = {
            let mut asked = self.asked.lock().unwrap();
            let count = asked.entry(parcel.id).or_default();
            *count += 1;
            *count - 1
        };
        let receipt = (self.script)(parcel, asked);
        if receipt == Receipt::Landed {
            self.landed.lock().unwrap().push(parcel.clone());
        }
        receipt
    }
}

/// Hands a recorder to a relay.
struct Handle(Arc<Recorder>);

impl Sink for Handle {
    fn about(&self) -> About {
        About { name: "recorder", dedup: Dedup::Receiver, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        let line = Box::new(Handle(self.0.clone()));
        Box::pin(async move { Ok(Opened { line, landed: None }) })
    }
}

impl Line for Handle {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(in_order(batch.parcels, 64, |parcel| self.0.send(parcel)))
    }
}

fn into(recorder: &Arc<Recorder>) -> Arc<dyn Sink> {
    Arc::new(Handle(recorder.clone()))
}

fn failed(reason: &str) -> Receipt {
    Receipt::Failed { reason: reason.into(), after: None }
}

/// Ten seconds until a message is given up.
fn impatient() -> Settings {
    Settings { retry: Retry { horizon: Duration::from_secs(10), ..Retry::default() }, ..Settings::default() }
}

async fn letters(outbox: &MemoryOutbox, only: Aside) -> Vec<Letter> {
    outbox.aside(Some(only), 0, 1000).await.unwrap()
}
