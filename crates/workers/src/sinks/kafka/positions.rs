//! How far a lane has come, kept in Kafka in the same transaction as its messages.
//!
//! A compacted topic with one partition per lane. The key is the store and the lane; the value is the epoch
//! of who wrote it and the outbox's own position, which only the outbox can read.
//!
//! Lanes of several stores may share a partition. A reader of what is committed sees nothing behind the beginning of
//! a transaction that is open, whoever's it is; so such a one of another store is waited for.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use semel_core::mutant;
use semel_core::outbox::{Facts, Position, Term};

use super::Trouble;
use crate::kafka::words;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the last record.
const READ_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks at whether others have ended their transactions.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Offsets looked at from the end, at first: the last record and the marks of its transaction.
const TAIL: i64 = 16;

/// Where one lane keeps its position.
#[derive(Clone)]
pub(super) struct Positions {
    config: ClientConfig,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) key: String,
    pub(super) transactional_id: String,
    lanes: i32,
    epoch: u64,
}

impl Positions {
    pub(super) fn new(config: &ClientConfig, topic: &str, outbox: &Facts, term: Term) -> Self {
        let store: String = outbox.store_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let lane = term.lane.0;
        Self {
            config: config.clone(),
            topic: topic.to_owned(),
            partition: i32::from(lane),
            key: format!("{store}.{lane}"),
            transactional_id: format!("semel-{store}-{lane}"),
            lanes: i32::from(outbox.lanes),
            epoch: term.epoch,
        }
    }

    /// The value that says how far the lane has come.
    pub(super) fn value(&self, position: &Position) -> Vec<u8> {
        [&self.epoch.to_be_bytes()[..], &position.0].concat()
    }

    /// Makes the topic if it is not there.
    pub(super) fn prepare(&self) -> Result<(), Trouble> {
        let admin: AdminClient<DefaultClientContext> =
            self.config.create().map_err(|error| Trouble::Unusable(words(&error)))?;
        let wanted = NewTopic::new(&self.topic, self.lanes, TopicReplication::Fixed(-1))
            .set("cleanup.policy", "compact");
        let options =
            AdminOptions::new().operation_timeout(Some(ANSWER_MAX)).request_timeout(Some(ANSWER_MAX));
        // Who may not make topics can use one that somebody made for them.
        let refused = match block_on(admin.create_topics([&wanted], &options)) {
            Ok(results) => results.into_iter().find_map(|made| made.err().map(|(_, code)| code)),
            Err(error) => return Err(Trouble::Down(format!("Kafka does not answer: {error}"))),
        };
        let refused = refused.filter(|code| *code != RDKafkaErrorCode::TopicAlreadyExists);
        let metadata = admin.inner().fetch_metadata(Some(&self.topic), ANSWER_MAX);
        let metadata = metadata.map_err(|error| Trouble::Down(format!("Kafka does not answer: {error}")))?;
        let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
        let lanes = usize::try_from(self.lanes).unwrap_or(1);
        if let (0, Some(code)) = (partitions, refused) {
            return Err(Trouble::Unusable(format!("the topic `{}` cannot be made: {code}", self.topic)));
        }
        if partitions == 0 {
            return Err(Trouble::Down(format!("the topic `{}` is not ready yet", self.topic)));
        }
        if partitions < lanes {
            // It was made for a store with fewer lanes. Those keep theirs.
            let more = NewPartitions::new(&self.topic, lanes);
            let made = block_on(admin.create_partitions([&more], &options));
            tracing::debug!(target: "semel::relay", ?made, "kafka");
            return Err(Trouble::Down(format!("the topic `{}` gets {lanes} partitions", self.topic)));
        }
        Ok(())
    }

    /// What was written last, by whoever had the lane. Call it after their transactions were ended.
    pub(super) fn read(&self) -> Result<Kept, Trouble> {
        let down =
            |error: KafkaError| Trouble::Down(format!("how far the lane came cannot be read: {error}"));
        let (_, end) = self
            .consumer("read_uncommitted")?
            .fetch_watermarks(&self.topic, self.partition, ANSWER_MAX)
            .map_err(down)?;
        let consumer = self.consumer("read_committed")?;
        let deadline = Instant::now() + READ_MAX;
        let (low, high) = loop {
            let (low, readable) =
                consumer.fetch_watermarks(&self.topic, self.partition, ANSWER_MAX).map_err(down)?;
            if readable >= end || mutant::on("kafka-position-hidden-by-others") {
                break (low, readable);
            }
            if Instant::now() >= deadline {
                let text = format!(
                    "how far the lane came cannot be read: a transaction of somebody else is open in partition {} of the topic \
                     `{}`, and what was written after it cannot be seen until it ends",
                    self.partition, self.topic
                );
                return Err(Trouble::Down(text));
            }
            std::thread::sleep(LOOK_PAUSE);
        };
        let mut back = TAIL;
        loop {
            let from = low.max(high - back);
            if let Some(value) = self.last_from(&consumer, from).map_err(down)? {
                return self.understood(&value);
            }
            if from <= low {
                return Ok(Kept::Nothing);
            }
            back *= 16;
        }
    }

    fn consumer(&self, isolation: &str) -> Result<BaseConsumer, Trouble> {
        let mut config = self.config.clone();
        config
            .set("group.id", &self.transactional_id)
            .set("isolation.level", isolation)
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true");
        config.create().map_err(|error| Trouble::Unusable(words(&error)))
    }

    fn last_from(&self, consumer: &BaseConsumer, from: i64) -> Result<Option<Bytes>, KafkaError> {
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(&self.topic, self.partition, Offset::Offset(from))?;
        consumer.assign(&assignment)?;
        let deadline = Instant::now() + READ_MAX;
        let mut last = None;
        while Instant::now() < deadline {
            match consumer.poll(Duration::from_millis(100)) {
                None => {}
                Some(Ok(message)) if message.key() == Some(self.key.as_bytes()) => {
                    last = message.payload().map(Bytes::copy_from_slice);
                }
                Some(Ok(_)) => {}
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(last),
                Some(Err(error)) => match error.rdkafka_error_code() {
                    // The client goes on by itself.
                    Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown) => {}
                    _ => return Err(error),
                },
            }
        }
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut))
    }

    fn understood(&self, value: &Bytes) -> Result<Kept, Trouble> {
        let damaged =
            || Trouble::Unusable(format!("the topic `{}` holds what Semel did not write", self.topic));
        let (epoch, _) = value.split_first_chunk::<8>().ok_or_else(damaged)?;
        Ok(match u64::from_be_bytes(*epoch) > self.epoch {
            true => Kept::Stale,
            false => Kept::Landed(Position(value.slice(8..))),
        })
    }
}

/// What Kafka knows of a lane.
pub(super) enum Kept {
    Nothing,
    /// How far it came.
    Landed(Position),
    /// Written in an epoch that is still to come: the database went back, and what this position covers may
    /// be other messages by now. Believing it could lose them; not believing it publishes some again.
    Stale,
}

/// Waits for an answer of the admin client on this thread, which is there for that.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match work.as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}
