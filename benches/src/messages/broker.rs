//! The brokers messages go to, and their own producers: what a relay is compared with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, StorageType};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use semel_core::outbox::{Facts, Term};
use semel_workers::sinks::{
    self, About, Address, Answer, Batch, Dedup, Line, Opened, Parcel, Receipt, Sink, Trouble,
};
use semel_workers::sources::kafka::rdkafka;

use super::flow::parcels;
use crate::Effort;

/// The stream, and what its subjects begin with.
const STREAM: &str = "bench";
/// The topic of Kafka, and the last part of a subject of NATS.
pub(super) const TOPIC: &str = "orders";
/// Partitions of a topic: as many as an outbox has lanes.
const PARTITIONS: i32 = 8;
/// Messages of one NATS client that may wait for their acknowledgements.
const FLYING_MAX: usize = 4096;
/// Longest wait for an acknowledgement.
const ACK_MAX: Duration = Duration::from_secs(60);
/// How long Kafka is kept busy before anything is measured, and with how many messages at a time.
const WARM_UP: Duration = Duration::from_secs(30);
const SMALL: u64 = 20;
/// How often Kafka's client is asked for news while there is none; its own waiting would keep a core busy.
const NAP: Duration = Duration::from_micros(300);
/// A day: ledgers must outlast it.
const KEPT: Duration = Duration::from_secs(86_400);

/// A broker.
#[derive(Clone)]
pub(super) enum Broker {
    /// As it comes: it acknowledges before it syncs.
    Nats {
        url: String,
    },
    /// It syncs each message before it acknowledges.
    SyncedNats {
        url: String,
    },
    Kafka {
        address: String,
    },
    /// None at all: what is published counts as landed.
    Nowhere,
}

impl Broker {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Nats { .. } => "JetStream",
            Self::SyncedNats { .. } => "JetStream, synced",
            Self::Kafka { .. } => "Kafka",
            Self::Nowhere => "nowhere",
        }
    }

    /// Messages of a backlog: some seconds of work.
    pub(super) fn backlog(&self, effort: Effort) -> u64 {
        match self {
            Self::SyncedNats { .. } => effort.pick(5_000, 1_000),
            _ => effort.pick(50_000, 4_000),
        }
    }

    /// Makes the stream or the topic.
    pub(super) async fn prepare(&self) -> Result<()> {
        match self {
            Self::Nats { url } | Self::SyncedNats { url } => {
                let config = Config {
                    name: STREAM.into(),
                    subjects: vec![format!("{STREAM}.>")],
                    storage: StorageType::File,
                    max_age: KEPT,
                    ..Config::default()
                };
                jetstream::new(async_nats::connect(url).await?).create_stream(config).await?;
                Ok(())
            }
            Self::Kafka { address } => make_topic(address, TOPIC, PARTITIONS).await,
            Self::Nowhere => Ok(()),
        }
    }

    /// Lets a broker in Java optimise its code, as one that has run for a while has.
    pub(super) async fn warm(&self, effort: Effort) -> Result<()> {
        if let Self::Kafka { .. } = self {
            let until = Instant::now() + effort.pick(WARM_UP, WARM_UP / 10);
            let (producer, parcels) = (self.producer().await?, parcels(SMALL, "ce_"));
            while Instant::now() < until {
                producer.write(parcels.clone()).await?;
            }
        }
        Ok(())
    }

    /// Takes out what is there, so that no later window pays for it.
    pub(super) async fn clear(&self) -> Result<()> {
        if let Self::Nats { url } | Self::SyncedNats { url } = self {
            let context = jetstream::new(async_nats::connect(url).await?);
            context.get_stream(STREAM).await?.purge().await?;
        }
        Ok(())
    }

    /// The relay's way into it.
    pub(super) async fn sink(&self) -> Result<Arc<dyn Sink>> {
        let address = match self {
            Self::Nats { url } | Self::SyncedNats { url } => format!("{url}/{STREAM}?stream={STREAM}"),
            Self::Kafka { address } => format!("kafka://{address}"),
            Self::Nowhere => return Ok(Arc::new(Nowhere)),
        };
        Ok(sinks::open(&Address::parse(&address)?).await?)
    }

    pub(super) async fn producer(&self) -> Result<Producer> {
        Ok(match self {
            Self::Nats { url } | Self::SyncedNats { url } => {
                Producer::Nats(Arc::new(nats_context(async_nats::connect(url).await?)))
            }
            Self::Kafka { address } => Producer::Kafka(Arc::new(kafka_producer(address)?)),
            Self::Nowhere => anyhow::bail!("nobody produces for nowhere"),
        })
    }
}

/// A sink that says of everything that it landed.
struct Nowhere;

impl Sink for Nowhere {
    fn about(&self) -> About {
        About { name: "nowhere", dedup: Dedup::Exact, attribute_prefix: "ce-" }
    }

    fn open(&self, _: &Facts, _: Term) -> Answer<'_, Result<Opened, Trouble>> {
        Box::pin(async { Ok(Opened { line: Box::new(Self), landed: None }) })
    }
}

impl Line for Nowhere {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(async move { vec![Receipt::Landed; batch.parcels.len()] })
    }
}

pub(super) async fn make_topic(address: &str, name: &str, partitions: i32) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create()?;
    let kept = KEPT.as_millis().to_string();
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("retention.ms", &kept);
    let made = admin.create_topics([&topic], &AdminOptions::new()).await?;
    ensure!(made.iter().all(|made| made.is_ok()), "Kafka did not make a topic: {made:?}");
    Ok(())
}

/// A broker's own producer, used as its documentation says: many messages on their way, each acknowledged.
#[derive(Clone)]
pub(super) enum Producer {
    Nats(Arc<jetstream::Context>),
    Kafka(Arc<BaseProducer<Landed>>),
}

impl Producer {
    /// Writes all of them, and waits until the broker has acknowledged each.
    pub(super) async fn write(&self, parcels: Arc<[Parcel]>) -> Result<()> {
        match self {
            Self::Nats(context) => write_nats(context, STREAM, &parcels).await,
            Self::Kafka(producer) => {
                let producer = producer.clone();
                tokio::task::spawn_blocking(move || write_kafka(&producer, &parcels)).await?
            }
        }
    }
}

/// A way to publish with many messages waiting for their acknowledgements.
pub(super) fn nats_context(client: async_nats::Client) -> jetstream::Context {
    ContextBuilder::new()
        .timeout(ACK_MAX)
        .ack_timeout(ACK_MAX)
        .max_ack_inflight(FLYING_MAX)
        .backpressure_on_inflight(true)
        .build(client)
}

/// Writes all of them below `prefix`, and waits until the stream has acknowledged each.
pub(super) async fn write_nats(context: &jetstream::Context, prefix: &str, parcels: &[Parcel]) -> Result<()> {
    let mut flying = FuturesUnordered::new();
    for parcel in parcels {
        let mut headers = HeaderMap::new();
        for (name, value) in parcel.headers.iter() {
            headers.append(&**name, value);
        }
        headers.insert("content-type", parcel.content_type.as_str());
        let message = PublishMessage::build()
            .headers(headers)
            .message_id(parcel.id.to_string())
            .payload(parcel.body.clone());
        let sent = context.send_publish(format!("{prefix}.{}", parcel.topic), message).await?;
        flying.push(async move { sent.await });
        if flying.len() >= FLYING_MAX {
            flying.next().await.context("one is on its way")??;
        }
    }
    while let Some(acknowledged) = flying.next().await {
        acknowledged?;
    }
    Ok(())
}

/// Counts what has landed.
#[derive(Default)]
pub(super) struct Landed(AtomicUsize);

impl ClientContext for Landed {}

impl ProducerContext for Landed {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// As durable as the relay's: idempotent, acknowledged by all in-sync replicas.
pub(super) fn kafka_producer(address: &str) -> Result<BaseProducer<Landed>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address).set("enable.idempotence", "true").set("acks", "all");
    Ok(config.set("linger.ms", "5").create_with_context(Landed::default())?)
}

/// Writes all of them, and waits until the broker has acknowledged each. Blocks.
pub(super) fn write_kafka(producer: &BaseProducer<Landed>, parcels: &[Parcel]) -> Result<()> {
    let before = producer.context().0.load(Ordering::Relaxed);
    for parcel in parcels {
        let mut headers = OwnedHeaders::new_with_capacity(parcel.headers.len() + 1)
            .insert(Header { key: "content-type", value: Some(&parcel.content_type) });
        for (name, value) in parcel.headers.iter() {
            headers = headers.insert(Header { key: name, value: Some(value) });
        }
        let key = parcel.key.as_deref().unwrap_or_default();
        let mut record =
            BaseRecord::to(parcel.topic.as_str()).key(key).payload(&parcel.body[..]).headers(headers);
        while let Err((error, back)) = producer.send(record) {
            ensure!(error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull), "{error}");
            producer.poll(Duration::ZERO);
            std::thread::sleep(NAP);
            record = back;
        }
        producer.poll(Duration::ZERO);
    }
    // Flushing would look only every tenth of a second.
    let until = Instant::now() + ACK_MAX;
    while producer.context().0.load(Ordering::Relaxed) - before < parcels.len() {
        ensure!(Instant::now() < until, "Kafka did not take all messages");
        producer.poll(Duration::ZERO);
        std::thread::sleep(NAP);
    }
    Ok(())
}
