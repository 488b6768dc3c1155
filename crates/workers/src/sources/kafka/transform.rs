//! Kafka to Kafka: what is read and what comes of it, in one transaction of Kafka's (G-47).
//!
//! Outputs and the group's offsets commit together, so a crash leaves both or neither, and readers with
//! `read_committed` see each output once. A zombie is fenced twice: by its `transactional.id`, whose newer
//! holder ends its transactions, and by the group's generation that travels with the offsets.
//!
//! It covers Kafka and nothing else: an effect outside, made by the function, happens again with the batch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, ConsumerGroupMetadata, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as Field, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel_core::error::{Error, Kind};
use semel_core::inbox::Incoming;
use semel_core::message::Header;

use super::reader::incoming;
use super::{ANSWER_MAX, told};

/// How long a poll waits for the first message of a batch.
const POLL: Duration = Duration::from_millis(100);
/// How long Kafka may take to commit.
const COMMIT_MAX: Duration = Duration::from_secs(60);

/// What to read, and as whom to write.
#[derive(Clone, Debug)]
pub struct Transform {
    /// `HOST:PORT`, separated by commas.
    pub brokers: String,
    /// The consumer group.
    pub group: String,
    /// The topics to read.
    pub topics: Vec<String>,
    /// The same for each start of one instance, another for each instance: a second holder fences the first.
    pub transactional_id: String,
    /// Most messages in one transaction.
    pub batch_max: usize,
}

/// A message to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Where to.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Its headers.
    pub headers: Vec<Header>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// How a transformation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was asked to.
    Stopped {
        /// Transactions committed.
        transactions: u64,
        /// Messages they covered.
        messages: u64,
    },
    /// Another instance has taken its place; nothing of the last transaction is visible.
    Fenced,
}

/// Reads, transforms and writes until `stop` is set or it is fenced, in a thread of its own.
///
/// `work` is given each message and may be given it again after a transaction that was not committed. What it
/// cannot transform it should write to a topic for dead letters; an error ends the transformation.
///
/// # Cancellation
/// The thread ends with the batch at hand: set `stop`. Nothing of an open transaction becomes visible.
pub async fn transform<F>(options: Transform, stop: Arc<AtomicBool>, work: F) -> Result<Outcome, Error>
where
    F: FnMut(&Incoming) -> Result<Vec<Output>, Error> + Send + 'static,
{
    let (ended, heard) = tokio::sync::oneshot::channel();
    let run = move || {
        drop(ended.send(Machine::open(&options).and_then(|machine| machine.run(&options, &stop, work))))
    };
    let no_thread =
        |error| Error::new(Kind::Busy, "the system has no thread to give for Kafka").because(error);
    std::thread::Builder::new().name("semel-transform".into()).spawn(run).map_err(no_thread)?;
    heard.await.unwrap_or_else(|_| Err(Error::new(Kind::Closed, "the transforming thread has ended")))
}

/// Counts rebalances.
#[derive(Default)]
struct Watch(AtomicU64);

impl ClientContext for Watch {}

impl ConsumerContext for Watch {
    fn pre_rebalance(&self, _consumer: &BaseConsumer<Self>, _rebalance: &Rebalance<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Machine {
    consumer: BaseConsumer<Watch>,
    producer: BaseProducer,
}

/// How a transaction ended.
enum Ended {
    Committed,
    Aborted,
    Fenced,
}

impl Machine {
    fn open(options: &Transform) -> Result<Self, Error> {
        let failed = |error: KafkaError| told("Kafka cannot be reached for a transformation", &error);
        let consumer: BaseConsumer<Watch> = ClientConfig::new()
            .set("bootstrap.servers", &options.brokers)
            .set("group.id", &options.group)
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest")
            .create_with_context(Watch::default())
            .map_err(failed)?;
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &options.brokers)
            .set("transactional.id", &options.transactional_id)
            .set("linger.ms", "5")
            .create()
            .map_err(failed)?;
        producer.init_transactions(COMMIT_MAX).map_err(failed)?;
        let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(failed)?;
        Ok(Self { consumer, producer })
    }

    fn run<F>(&self, options: &Transform, stop: &AtomicBool, mut work: F) -> Result<Outcome, Error>
    where
        F: FnMut(&Incoming) -> Result<Vec<Output>, Error>,
    {
        let (mut transactions, mut messages) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            // Before anything is read: a later one would vouch for what was read under an earlier.
            let Some(group) = self.consumer.group_metadata() else {
                return Err(Error::new(Kind::Closed, "the consumer of Kafka has left its group"));
            };
            let rebalances = self.rebalances();
            let batch = self.read(options.batch_max)?;
            if batch.messages.is_empty() {
                continue;
            }
            if self.rebalances() != rebalances || self.consumer.assignment_lost() {
                self.go_back(&batch)?;
                continue;
            }
            let mut outputs = Vec::new();
            for message in &batch.messages {
                outputs.extend(work(message)?);
            }
            match self.transact(&batch, &outputs, &group)? {
                Ended::Committed => {
                    transactions += 1;
                    messages += batch.messages.len() as u64;
                }
                Ended::Aborted => self.go_back(&batch)?,
                Ended::Fenced => return Ok(Outcome::Fenced),
            }
        }
        Ok(Outcome::Stopped { transactions, messages })
    }

    fn rebalances(&self) -> u64 {
        self.consumer.context().0.load(Ordering::Relaxed)
    }

    fn read(&self, limit: usize) -> Result<Batch, Error> {
        let mut batch = Batch::default();
        let mut wait = POLL;
        while batch.messages.len() < limit {
            match self.consumer.poll(wait) {
                Some(Ok(message)) => {
                    let place = (message.topic().to_owned(), message.partition());
                    let range = batch.ranges.entry(place).or_insert((message.offset(), 0));
                    range.1 = message.offset() + 1;
                    batch.messages.push(incoming(&message));
                }
                Some(Err(error)) => return Err(told("reading from Kafka failed", &error)),
                None => break,
            }
            wait = Duration::ZERO;
        }
        Ok(batch)
    }

    fn transact(
        &self,
        batch: &Batch,
        outputs: &[Output],
        group: &ConsumerGroupMetadata,
    ) -> Result<Ended, Error> {
        match self.write(batch, outputs, group) {
            Ok(()) => Ok(Ended::Committed),
            Err(error) if is_fenced(&error) => Ok(Ended::Fenced),
            Err(error) => {
                tracing::warn!(%error, "a transaction of Kafka is aborted; its messages are read again");
                match self.producer.abort_transaction(COMMIT_MAX) {
                    Ok(()) => Ok(Ended::Aborted),
                    Err(error) if is_fenced(&error) => Ok(Ended::Fenced),
                    Err(error) => {
                        Err(told("a transaction of Kafka can be neither committed nor aborted", &error))
                    }
                }
            }
        }
    }

    fn write(
        &self,
        batch: &Batch,
        outputs: &[Output],
        group: &ConsumerGroupMetadata,
    ) -> Result<(), KafkaError> {
        self.producer.begin_transaction()?;
        for output in outputs {
            self.send(output)?;
        }
        let mut next = TopicPartitionList::new();
        for ((topic, partition), (_, offset)) in &batch.ranges {
            next.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
        }
        self.producer.send_offsets_to_transaction(&next, group, ANSWER_MAX)?;
        self.producer.commit_transaction(COMMIT_MAX)
    }

    fn send(&self, output: &Output) -> Result<(), KafkaError> {
        let mut headers = OwnedHeaders::new();
        for header in &output.headers {
            headers = headers.insert(Field { key: &header.name, value: Some(&header.value) });
        }
        let mut record: BaseRecord<'_, str, [u8]> =
            BaseRecord::to(&output.topic).payload(&output.payload[..]).headers(headers);
        if let Some(key) = &output.key {
            record = record.key(key.as_str());
        }
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                // What was written before must leave first.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    self.producer.poll(POLL);
                    record = back;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// The consumer has read on; what was not committed must be read again. Where Kafka does not go back in a
    /// partition that is still ours, going on would pass over it: then the transformation ends.
    fn go_back(&self, batch: &Batch) -> Result<(), Error> {
        for ((topic, partition), (first, _)) in &batch.ranges {
            match self.consumer.seek(topic, *partition, Offset::Offset(*first), ANSWER_MAX) {
                Ok(()) => {}
                // It went to somebody else, who begins at the committed offset.
                Err(KafkaError::Seek(_)) if !self.is_ours(topic, *partition) => {
                    tracing::info!(topic, partition, "a partition is not ours any more")
                }
                Err(error) => return Err(told("Kafka did not go back", &error)),
            }
        }
        Ok(())
    }

    fn is_ours(&self, topic: &str, partition: i32) -> bool {
        let lost = self.consumer.assignment_lost();
        !lost && self.consumer.assignment().map_or(true, |all| all.find_partition(topic, partition).is_some())
    }
}

/// What was read for one transaction, and the offsets it covers: the first, and where to go on.
#[derive(Default)]
struct Batch {
    messages: Vec<Incoming>,
    ranges: BTreeMap<(String, i32), (i64, i64)>,
}

/// Whether another instance has taken this one's place.
fn is_fenced(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{Fenced, InvalidProducerEpoch, ProducerFenced};
    matches!(error.rdkafka_error_code(), Some(Fenced | ProducerFenced | InvalidProducerEpoch))
}
