//! Messages from a NATS JetStream stream, by a durable pull consumer.
//!
//! The stream keeps what was not acknowledged and delivers it again after the acknowledgement deadline,
//! which is extended while a message is worked on. The id is the producer's (`Nats-Msg-Id`, `semel-id`,
//! `ce-id`); the stream's sequence only says where a message lies.
//!
//! Messages that were on their way when a connection broke come again only when their deadlines have passed, behind
//! whatever is read until then. After a read that was cut off nothing new is read before that time, so that the order of
//! a key survives a broker that restarts.
//!
//! Several processes may share the durable consumer. JetStream then hands messages of one key to any of
//! them: order per key needs one process per key, or a limit of one message in flight.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::Acker;
use async_nats::jetstream::{self, AckKind, stream};
use futures_util::StreamExt;
use futures_util::future::join_all;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Horizon, Incoming, Offset};
use semel_core::message::Header;
use semel_core::mutant;
use semel_core::store::Pending;
use tokio::time::{Instant, timeout};

use crate::consumer::{Delivery, Receipt, Source};

/// How long one answer of the server is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long after a deadline the server may take to deliver again.
const REDELIVERY_MAX: Duration = Duration::from_secs(1);

pub use async_nats::Client;

/// Connects to a server, with TLS where the address or the server wants it. A user and password may be in the
/// address; no error repeats it.
pub async fn connect(server: &str) -> Result<Client, Error> {
    // Whatever else in this process uses TLS may have chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    async_nats::connect(server).await.map_err(|error| {
        let kind = match error.kind() {
            async_nats::ConnectErrorKind::Authentication
            | async_nats::ConnectErrorKind::AuthorizationViolation => Kind::Denied,
            async_nats::ConnectErrorKind::ServerParse => Kind::Misconfigured,
            _ => Kind::Unreachable,
        };
        Error::new(kind, format!("no connection to NATS: {}", error.kind()))
    })
}

/// Where to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The stream. It must be there.
    pub stream: String,
    /// The durable consumer, made if it is not there.
    pub durable: String,
    /// Only these subjects; all if empty.
    pub subjects: Vec<String>,
    /// How long a delivery is the reader's without a sign of life.
    pub ack_wait: Duration,
    /// Most messages in flight.
    pub ack_pending_max: i64,
    /// Wait for the server to confirm each acknowledgement: fewer duplicates after a crash, for a round trip.
    pub double_ack: bool,
}

impl Options {
    /// The defaults.
    pub fn new(stream: impl Into<String>, durable: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            durable: durable.into(),
            subjects: Vec::new(),
            ack_wait: Duration::from_secs(30),
            ack_pending_max: 10_000,
            double_ack: false,
        }
    }
}

/// A stream, read by a durable consumer.
pub struct Nats {
    stream: stream::Stream,
    consumer: PullConsumer,
    name: String,
    options: Options,
    client: Client,
    /// Everything delivered that was neither acknowledged nor given back.
    held: HashMap<Receipt, Acker>,
    /// Read, and not yet returned: a read that is dropped leaves it for the next.
    waiting: Vec<Delivery>,
    next_receipt: u64,
    cut: Option<Cut>,
}

/// A read was cut off, and messages may have been lost on their way.
struct Cut {
    /// Connections made until then. The server counts deadlines anew from when it is back.
    connects: u64,
    /// By then they have come again.
    until: Instant,
}

impl Nats {
    /// Finds the stream and finds or makes the durable consumer. Refuses, with a sentence, a stream that is not
    /// there and a durable consumer that does not wait for acknowledgements or has other subjects.
    pub async fn open(client: async_nats::Client, options: Options) -> Result<Self, Error> {
        let context = jetstream::new(client.clone());
        let stream = context.get_stream(&options.stream).await.map_err(|error| {
            let text = format!("the NATS stream {} cannot be opened; does it exist?", options.stream);
            Error::new(kind_of(&error), text).because(error)
        })?;
        let wanted = pull::Config {
            durable_name: Some(options.durable.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: options.ack_wait,
            max_deliver: -1,
            max_ack_pending: options.ack_pending_max,
            filter_subjects: options.subjects.clone(),
            ..pull::Config::default()
        };
        let consumer = stream.get_or_create_consumer(&options.durable, wanted).await.map_err(|error| {
            let text = format!("the durable consumer {} of NATS cannot be had", options.durable);
            Error::new(Kind::Unreachable, text).because(error)
        })?;
        let found = &consumer.cached_info().config;
        if found.ack_policy != AckPolicy::Explicit || found.max_deliver > 0 {
            let text = format!(
                "the durable consumer {} acknowledges by itself or gives up after some deliveries: messages \
                 would be lost; delete it, or use another name",
                options.durable
            );
            return Err(Error::new(Kind::Misconfigured, text));
        }
        let options = Options { ack_wait: found.ack_wait, ..options };
        let name = format!("nats/{}", options.stream);
        let (held, waiting) = (HashMap::new(), Vec::new());
        Ok(Self { stream, consumer, name, options, client, held, waiting, next_receipt: 0, cut: None })
    }

    fn take(&mut self, message: jetstream::Message) -> Result<Delivery, Error> {
        let damaged =
            || Error::new(Kind::Damaged, "NATS delivered a message without its place in the stream");
        let place = message.info().map_err(|_| damaged())?.stream_sequence.to_string();
        let (message, acker) = message.split();
        let mut headers = Vec::new();
        for (name, values) in message.headers.iter().flat_map(|map| map.iter()) {
            let name = name.to_string().to_ascii_lowercase();
            headers
                .extend(values.iter().map(|value| Header { name: name.clone(), value: value.to_string() }));
        }
        self.next_receipt += 1;
        let receipt = Receipt(self.next_receipt);
        self.held.insert(receipt, acker);
        let message = Incoming {
            source: self.name.clone(),
            place,
            subject: message.subject.to_string(),
            key: None,
            headers,
            payload: message.payload,
        };
        Ok(Delivery { receipt, message, position: None })
    }

    /// Takes what comes. A connection that breaks says nothing: whoever waits `patience` for the next message,
    /// or for the word that there is none, waits in vain.
    async fn collect(&mut self, mut batch: pull::Batch, patience: Duration) -> Result<(), Error> {
        let late = |late| unreachable("NATS stopped in the middle of its answer", late);
        while let Some(message) = timeout(patience, batch.next()).await.map_err(late)? {
            let message = message.map_err(|error| unreachable("reading from NATS failed", error))?;
            let delivery = self.take(message)?;
            self.waiting.push(delivery);
        }
        Ok(())
    }

    async fn read(&mut self, limit: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        match self.fill(limit, wait).await {
            // What came before an error is the caller's: nobody else gets it until its deadline.
            Err(error) if !self.waiting.is_empty() => {
                tracing::warn!(%error, "not all messages could be read; going on with those that were");
            }
            other => other?,
        }
        let count = self.waiting.len().min(limit);
        Ok(self.waiting.drain(..count).collect())
    }

    async fn fill(&mut self, limit: usize, wait: Duration) -> Result<(), Error> {
        if !self.waiting.is_empty() {
            return Ok(());
        }
        let left = self.cut_ends_in();
        if !left.is_zero() {
            tokio::time::sleep(left.min(wait)).await;
            return Ok(());
        }
        let fetched = self.fetch(limit, wait).await;
        if fetched.is_err() && !mutant::on("nats-source-reads-on") {
            self.cut = Some(self.cut_now());
        }
        fetched
    }

    async fn fetch(&mut self, limit: usize, wait: Duration) -> Result<(), Error> {
        // What is there already; asking for a full batch would wait until it is full.
        let there = self.consumer.fetch().max_messages(limit).messages().await;
        let there = there.map_err(|error| unreachable("NATS gave no messages", error))?;
        self.collect(there, ANSWER_MAX).await?;
        if self.waiting.is_empty() {
            let first = self.consumer.batch().max_messages(1).expires(wait).messages().await;
            let first = first.map_err(|error| unreachable("NATS gave no messages", error))?;
            // Less than after what the client by itself takes silence for the end.
            self.collect(first, wait + ANSWER_MAX / 2).await?;
        }
        Ok(())
    }

    fn cut_now(&self) -> Cut {
        let connects = self.client.statistics().connects.load(Ordering::Relaxed);
        Cut { connects, until: Instant::now() + self.options.ack_wait + REDELIVERY_MAX }
    }

    /// How long nothing new may be read.
    fn cut_ends_in(&mut self) -> Duration {
        let Some(cut) = &self.cut else { return Duration::ZERO };
        let now = self.cut_now();
        let left = match cut.connects == now.connects {
            true => cut.until.saturating_duration_since(Instant::now()),
            false => self.cut.insert(now).until.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            self.cut = None;
        }
        left
    }

    /// Says something about deliveries, all at once.
    async fn say(&mut self, receipts: &[Receipt], kind: AckKind) -> Result<(), Error> {
        let double = self.options.double_ack && matches!(kind, AckKind::Ack);
        let say = receipts.iter().filter_map(|receipt| self.held.get(receipt)).map(|acker| async move {
            match double {
                true => timeout(ANSWER_MAX, acker.double_ack_with(kind)).await,
                false => timeout(ANSWER_MAX, acker.ack_with(kind)).await,
            }
        });
        let mut said = Ok(());
        for one in join_all(say).await {
            match one {
                Ok(Ok(())) => {}
                Ok(Err(error)) => said = Err(unreachable("NATS did not take an acknowledgement", error)),
                Err(late) => said = Err(unreachable("NATS did not take an acknowledgement in time", late)),
            }
        }
        said
    }
}

impl Source for Nats {
    fn horizon(&mut self) -> Pending<'_, Horizon> {
        Box::pin(async move {
            let info = self.stream.info().await;
            let info = info.map_err(|error| unreachable("NATS did not describe the stream", error))?;
            Ok(match info.config.max_age {
                Duration::ZERO => Horizon::Unbounded,
                age => Horizon::Within(age),
            })
        })
    }

    fn next(&mut self, limit: usize, wait: Duration) -> Pending<'_, Vec<Delivery>> {
        Box::pin(self.read(limit, wait))
    }

    fn extend_every(&self) -> Option<Duration> {
        Some(self.options.ack_wait / 3)
    }

    fn extend<'a>(&'a mut self, receipts: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(self.say(receipts, AckKind::Progress))
    }

    fn ack<'a>(&'a mut self, receipts: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(async move {
            let said = self.say(receipts, AckKind::Ack).await;
            receipts.iter().for_each(|receipt| drop(self.held.remove(receipt)));
            said
        })
    }

    fn nack<'a>(&'a mut self, receipts: &'a [Receipt], delay: Duration) -> Pending<'a, ()> {
        Box::pin(async move {
            let said = self.say(receipts, AckKind::Nak(Some(delay).filter(|delay| !delay.is_zero()))).await;
            receipts.iter().for_each(|receipt| drop(self.held.remove(receipt)));
            said
        })
    }

    fn close(&mut self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.waiting.clear();
            let mut receipts: Vec<Receipt> = self.held.keys().copied().collect();
            if receipts.is_empty() {
                return Ok(());
            }
            receipts.sort_unstable();
            let said = self.say(&receipts, AckKind::Nak(None)).await;
            self.held.clear();
            match timeout(ANSWER_MAX, self.client.flush()).await {
                Ok(Ok(())) => said,
                Ok(Err(error)) => Err(unreachable("NATS was not told what comes again", error)),
                Err(late) => Err(unreachable("NATS was not told in time what comes again", late)),
            }
        })
    }

    fn fenced<'a>(&'a mut self, _offsets: &'a [Offset]) -> Pending<'a, ()> {
        // Positions are the stream's own: nothing of this is kept in the database.
        Box::pin(async { Ok(()) })
    }
}

fn kind_of(error: &jetstream::context::GetStreamError) -> Kind {
    use jetstream::context::GetStreamErrorKind;
    match error.kind() {
        GetStreamErrorKind::Request => Kind::Unreachable,
        _ => Kind::Misconfigured,
    }
}

fn unreachable(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let error = error.into();
    Error::new(Kind::Unreachable, format!("{what}: {error}")).because(error)
}
