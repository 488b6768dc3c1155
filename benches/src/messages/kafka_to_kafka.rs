//! From one topic to another: at least once, in a transaction of Kafka's, and through a database.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel_core::inbox::{Arrival, Failure};
use semel_core::message::Topic;
use semel_core::runtime::Tokio;
use semel_core::{Message, MessageId};
use semel_stores::postgres::inbox::{At, Handler, Joined};
use semel_stores::postgres::{PostgresStore, outbox};
use semel_workers::consumer::{Consumer, Options};
use semel_workers::sinks::{Headers, Parcel};
use semel_workers::sources::kafka::{self, Kafka, Outcome, Output, Transform, rdkafka, transform};
use tokio::sync::oneshot;
use tokio_postgres::Transaction;

use super::PAYLOAD_BYTES;
use super::broker::{Broker, TOPIC, kafka_producer, make_topic, write_kafka};
use super::session::{Session, Times};
use super::shop::Shop;
use crate::Effort;
use crate::board::Board;

const FROM: &str = "incoming";
const PARTITIONS: i32 = 4;
/// Messages read, written and committed together.
const BATCH: usize = 500;
const POLL: Duration = Duration::from_millis(100);
const ENDED_MAX: Duration = Duration::from_secs(120);
const PLAIN: &str = "at least once";
const TRANSACTION: &str = "in one transaction of Kafka";
const DATABASE: &str = "ledger and outbox in Postgres, relay";

pub(super) async fn measure(effort: Effort, shop: &Shop, broker: &Broker) -> Result<Board> {
    let (Shop::Postgres(database), Broker::Kafka { address }) = (shop, broker) else {
        anyhow::bail!("this is measured with Postgres and Kafka");
    };
    let count = effort.pick(50_000, 2_000);
    let mut board = Board::new(format!("Kafka to Kafka, batches of {BATCH}"), "messages/s").against(PLAIN);
    make_topic(address, FROM, PARTITIONS).await?;
    let (place, parcels) = (address.clone(), incoming(count));
    tokio::task::spawn_blocking(move || write_kafka(&kafka_producer(&place)?, &parcels)).await??;
    for round in 0..effort.rounds {
        let (place, group) = (address.clone(), format!("plain-{round}"));
        board.add(PLAIN, tokio::task::spawn_blocking(move || plain(&place, &group, count)).await??);
        board.add(TRANSACTION, transactional(address, &format!("transaction-{round}"), count).await?);
        board.add(
            DATABASE,
            through_database(database, shop, broker, &format!("database-{round}"), count).await?,
        );
    }
    for (name, what) in [(TRANSACTION, "a transaction"), (DATABASE, "a database")] {
        let cost = 100.0 * (board.median(PLAIN) / board.median(name) - 1.0);
        board.note(format!("Time per message {cost:+.0} % through {what}, against at least once."));
    }
    board.note("At least once: read, write with an idempotent producer, flush, commit offsets; receivers must tell copies apart, by a ledger of their own.");
    Ok(board)
}

fn incoming(count: u64) -> Vec<Parcel> {
    let parcel = |number: u64| {
        let id = MessageId::new();
        Parcel {
            id,
            topic: Topic::parse(FROM).expect("the topic is plain"),
            key: Some(format!("customer-{}", number % super::KEYS)),
            headers: [("semel-id", id.to_string())].into_iter().collect(),
            content_type: "application/octet-stream".into(),
            body: vec![b'x'; PAYLOAD_BYTES].into(),
        }
    };
    (0..count).map(parcel).collect()
}

/// From the first tenth to the last.
struct Span {
    count: u64,
    first: Option<(u64, Instant)>,
}

impl Span {
    fn new(count: u64) -> Self {
        Self { count, first: None }
    }

    fn reached(&mut self, done: u64) {
        if done >= self.count / 10 {
            self.first.get_or_insert((done, Instant::now()));
        }
    }

    fn rate(&self) -> Result<f64> {
        let (done, began) = self.first.context("the first tenth was reached")?;
        Ok((self.count - done) as f64 / began.elapsed().as_secs_f64())
    }
}

/// What everybody writes: offsets are committed after the outputs. Blocks.
fn plain(address: &str, group: &str, count: u64) -> Result<f64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(&[FROM])?;
    let producer = kafka_producer(address)?;
    let topic = Topic::parse(TOPIC)?;
    let (mut done, mut span, began) = (0, Span::new(count), Instant::now());
    while done < count {
        ensure!(began.elapsed() < ENDED_MAX, "{done} of {count} messages came");
        let (mut outputs, mut next, mut wait) = (Vec::new(), TopicPartitionList::new(), POLL);
        while outputs.len() < BATCH
            && let Some(message) = consumer.poll(wait)
        {
            let message = message?;
            wait = Duration::ZERO;
            let (partition, offset) = (message.partition(), Offset::Offset(message.offset() + 1));
            if next.find_partition(FROM, partition).is_none() {
                next.add_partition(FROM, partition);
            }
            next.set_partition_offset(FROM, partition, offset)?;
            let key = message.key().map(|key| String::from_utf8_lossy(key).into_owned());
            outputs.push(Parcel {
                id: MessageId::new(),
                topic: topic.clone(),
                key,
                headers: Headers::default(),
                content_type: "application/octet-stream".into(),
                body: bytes::Bytes::copy_from_slice(message.payload().unwrap_or_default()),
            });
        }
        if outputs.is_empty() {
            continue;
        }
        write_kafka(&producer, &outputs)?;
        consumer.commit(&next, CommitMode::Sync)?;
        done += outputs.len() as u64;
        span.reached(done);
    }
    span.rate()
}

async fn transactional(address: &str, group: &str, count: u64) -> Result<f64> {
    let options = Transform {
        brokers: address.into(),
        group: group.into(),
        topics: vec![FROM.into()],
        transactional_id: group.into(),
        batch_max: BATCH,
    };
    let (stop, span) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Span::new(count))));
    let (enough, seen_by) = (stop.clone(), span.clone());
    let mut seen = 0;
    let ended = transform(options, stop, move |message| {
        seen += 1;
        seen_by.lock().expect("nobody panicked").reached(seen);
        // The transaction at hand is still committed.
        if seen == count {
            enough.store(true, Ordering::Relaxed);
        }
        let payload = message.payload.to_vec();
        Ok(vec![Output { topic: TOPIC.into(), key: message.key.clone(), headers: Vec::new(), payload }])
    });
    let ended = tokio::time::timeout(ENDED_MAX, ended).await.context("the transformation did not end")??;
    ensure!(matches!(ended, Outcome::Stopped { messages, .. } if messages == count), "it ended {ended:?}");
    span.lock().expect("nobody panicked").rate()
}

/// Each message becomes another, in the transaction of its ledger row.
struct Onward;

impl Handler for Onward {
    async fn apply(&self, tx: &Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        self.apply_all(tx, &[arrival]).await.map_err(|at| at.failure)
    }

    async fn apply_all(&self, tx: &Transaction<'_>, arrivals: &[&Arrival]) -> Result<(), At> {
        let topic = Topic::parse(TOPIC).expect("the topic is plain");
        let onward = arrivals.iter().map(|arrival| {
            let message = Message::new(topic.clone(), arrival.message.payload.clone());
            message
                .key(arrival.message.key.clone().unwrap_or_default())
                .content_type("application/octet-stream")
        });
        let onward: Vec<Message> = onward.collect();
        let failed =
            |error: semel_core::Error| At { index: None, failure: Failure::Later(error.to_string()) };
        outbox::enqueue(tx, &onward).await.map_err(failed)
    }
}

async fn through_database(
    database: &str,
    shop: &Shop,
    broker: &Broker,
    group: &str,
    count: u64,
) -> Result<f64> {
    let Broker::Kafka { address } = broker else { anyhow::bail!("this is measured with Kafka") };
    let store = PostgresStore::connect(database).await?;
    let inbox = Arc::new(store.inbox());
    let session = Session::warm(shop, broker, Times::new(0)).await?;
    let source = Kafka::open(inbox.clone(), kafka::Options::new(address, vec![FROM.into()], group)).await?;
    let apply = Arc::new(Joined::new(inbox.clone(), Onward));
    let consumer = Consumer::new(source, apply, inbox, Arc::new(Tokio::new()), Options::new(group));
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move { consumer.run(async { drop(stopped.await) }).await });
    let mut span = Span::new(count);
    session.until_published(count / 10).await?;
    span.reached(session.published());
    session.until_published(count).await?;
    let rate = span.rate();
    let _ = stop.send(());
    task.await??;
    session.stop().await?;
    store.close().await;
    rate
}
