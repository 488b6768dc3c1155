//! The thread that polls librdkafka, and what it does on a rebalance.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Assignment, Inbox, Incoming};
use semel_core::message::Header;
use semel_core::{Backoff, Nonce};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::{ANSWER_MAX, Options, Start, told};
use crate::consumer::{Delivery, Position, Receipt};

/// How long one poll waits; so long a command may wait, too.
const POLL: Duration = Duration::from_millis(100);
/// How long Kafka is given to say that a partition went to somebody else, before it is taken again.
const TAKE_AGAIN_AFTER: Duration = Duration::from_secs(3);

/// A partition under one assignment.
pub(super) type Taken = (String, i32, u64);

/// What the source wants of the thread.
pub(super) enum Command {
    /// The database refused this assignment. If Kafka still says the partition is ours, take it again.
    TakeAgain(Taken),
}

/// The partitions that are ours, and under which generation.
pub(super) struct Assigned {
    inbox: Arc<dyn Inbox>,
    group: String,
    start: Start,
    generations: Mutex<HashMap<(String, i32), u64>>,
    home: Handle,
}

impl Assigned {
    pub(super) fn new(inbox: Arc<dyn Inbox>, options: &Options) -> Self {
        Self {
            inbox,
            group: options.group.clone(),
            start: options.start,
            generations: Mutex::default(),
            home: Handle::current(),
        }
    }

    pub(super) fn is_current(&self, position: Option<&Position>) -> bool {
        let Some(Position { topic, partition, generation, .. }) = position else { return false };
        self.generation(topic, *partition) == Some(*generation)
    }

    /// Forgets an assignment, unless there is a newer one.
    pub(super) fn forget(&self, (topic, partition, generation): &Taken) {
        let mut generations = self.lock();
        let place = (topic.clone(), *partition);
        if generations.get(&place) == Some(generation) {
            generations.remove(&place);
        }
    }

    fn generation(&self, topic: &str, partition: i32) -> Option<u64> {
        self.lock().get(&(topic.to_owned(), partition)).copied()
    }

    /// Takes a partition in the database. Asks until it answers: without its word nothing may be read.
    fn take(&self, topic: &str, partition: i32) -> Result<Offset, Error> {
        let mut backoff = Backoff::new(Nonce::random());
        loop {
            match self.home.block_on(self.inbox.assign(&self.group, topic, partition)) {
                Ok(Assignment { generation, next }) => {
                    self.lock().insert((topic.to_owned(), partition), generation);
                    tracing::info!(topic, partition, generation, ?next, "a partition is ours");
                    return Ok(match (next, self.start) {
                        (Some(next), _) => Offset::Offset(next),
                        (None, Start::Beginning) => Offset::Beginning,
                        (None, Start::End) => Offset::End,
                    });
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, topic, partition, "the database does not say where to go on");
                    std::thread::sleep(backoff.next_pause());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, i32), u64>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// librdkafka's view of the same.
struct Context(Arc<Assigned>);

impl ClientContext for Context {}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        code: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let is_assignment = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let done = match is_assignment {
            true => {
                let given = self.taken(partitions);
                if cooperative { consumer.incremental_assign(&given) } else { consumer.assign(&given) }
            }
            false => {
                for element in partitions.elements() {
                    self.0.lock().remove(&(element.topic().to_owned(), element.partition()));
                }
                if cooperative { consumer.incremental_unassign(partitions) } else { consumer.unassign() }
            }
        };
        if let Err(error) = done {
            tracing::error!(%error, "a rebalance of Kafka was not carried out");
        }
    }
}

impl Context {
    /// The partitions with the places to go on at. One the database does not give is read by nobody here.
    fn taken(&self, partitions: &TopicPartitionList) -> TopicPartitionList {
        let mut given = TopicPartitionList::new();
        for element in partitions.elements() {
            let (topic, partition) = (element.topic(), element.partition());
            match self.0.take(topic, partition) {
                Ok(offset) => {
                    let _ = given.add_partition_offset(topic, partition, offset);
                }
                Err(error) => {
                    tracing::error!(%error, topic, partition, "the database does not give a partition");
                }
            }
        }
        given
    }
}

/// Starts the thread. It ends when the source is dropped.
pub(super) async fn start(
    options: &Options,
    assigned: Arc<Assigned>,
    deliveries: Sender<Result<Delivery, Error>>,
    commands: Receiver<Command>,
) -> Result<(), Error> {
    let (options, (ready, heard)) = (options.clone(), oneshot::channel());
    let run = move || match open(&options, assigned.clone()) {
        Ok(consumer) => {
            let _ = ready.send(Ok(()));
            Thread { consumer, assigned, deliveries, commands, again: Vec::new(), receipts: 0 }.run();
        }
        Err(error) => drop(ready.send(Err(error))),
    };
    let no_thread =
        |error| Error::new(Kind::Busy, "the system has no thread to give for Kafka").because(error);
    std::thread::Builder::new().name("semel-kafka".into()).spawn(run).map_err(no_thread)?;
    heard
        .await
        .unwrap_or_else(|_| Err(Error::new(Kind::Closed, "the thread that reads from Kafka has ended")))
}

fn open(options: &Options, assigned: Arc<Assigned>) -> Result<BaseConsumer<Context>, Error> {
    let failed = |error: KafkaError| told("Kafka cannot be read", &error);
    let consumer: BaseConsumer<Context> =
        options.config().create_with_context(Context(assigned)).map_err(failed)?;
    for topic in &options.topics {
        let found = consumer.fetch_metadata(Some(topic.as_str()), ANSWER_MAX).map_err(failed)?;
        let is_there = found.topics().iter().any(|one| one.name() == topic && !one.partitions().is_empty());
        if !is_there {
            let text = format!("the Kafka topic {topic} is not there; create it");
            return Err(Error::new(Kind::Misconfigured, text));
        }
    }
    let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
    consumer.subscribe(&topics).map_err(failed)?;
    Ok(consumer)
}

struct Thread {
    consumer: BaseConsumer<Context>,
    assigned: Arc<Assigned>,
    deliveries: Sender<Result<Delivery, Error>>,
    commands: Receiver<Command>,
    again: Vec<(Instant, Taken)>,
    receipts: u64,
}

impl Thread {
    fn run(mut self) {
        let mut held: Option<Result<Delivery, Error>> = None;
        while !self.deliveries.is_closed() {
            self.obey();
            if let Some(delivery) = held.take() {
                if let Err(TrySendError::Full(delivery)) = self.deliveries.try_send(delivery) {
                    held = Some(delivery);
                    self.stay_a_member();
                }
                continue;
            }
            held = match self.consumer.poll(POLL) {
                None => None,
                Some(Ok(message)) => delivery(&self.assigned, &message, &mut self.receipts).map(Ok),
                Some(Err(error)) => Some(Err(told("reading from Kafka failed", &error))),
            };
        }
        // The consumer leaves the group when it is dropped.
    }

    /// Nobody takes messages now: polls without reading any, so that Kafka knows we are alive.
    fn stay_a_member(&self) {
        let Ok(all) = self.consumer.assignment() else { return };
        if self.consumer.pause(&all).is_err() {
            return std::thread::sleep(POLL);
        }
        // Paused partitions give nothing; if one does all the same, it is read again.
        if let Some(Ok(message)) = self.consumer.poll(POLL) {
            let (topic, partition) = (message.topic(), message.partition());
            let _ = self.consumer.seek(topic, partition, Offset::Offset(message.offset()), ANSWER_MAX);
        }
        let _ = self.consumer.resume(&all);
    }

    fn obey(&mut self) {
        while let Ok(Command::TakeAgain(taken)) = self.commands.try_recv() {
            self.again.push((Instant::now() + TAKE_AGAIN_AFTER, taken));
        }
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.again).into_iter().partition(|(at, _)| *at <= now);
        self.again = later;
        for (_, (topic, partition, generation)) in due {
            let ours =
                self.consumer.assignment().is_ok_and(|all| all.find_partition(&topic, partition).is_some());
            let newer = self.assigned.generation(&topic, partition).is_some_and(|newest| newest > generation);
            if !ours || newer || self.consumer.assignment_lost() {
                continue;
            }
            match self.assigned.take(&topic, partition) {
                Ok(offset) => {
                    if let Err(error) = self.consumer.seek(&topic, partition, offset, ANSWER_MAX) {
                        tracing::warn!(%error, topic, partition, "Kafka did not go back to where the database is");
                        self.again.push((now + TAKE_AGAIN_AFTER, (topic, partition, u64::MAX - 1)));
                    }
                }
                Err(error) => {
                    tracing::error!(%error, topic, partition, "the database does not give a partition")
                }
            }
        }
    }
}

/// `None` for a message of a partition that is not ours any more.
fn delivery(assigned: &Assigned, message: &BorrowedMessage<'_>, receipts: &mut u64) -> Option<Delivery> {
    let (topic, partition, offset) = (message.topic().to_owned(), message.partition(), message.offset());
    let generation = assigned.generation(&topic, partition)?;
    *receipts += 1;
    Some(Delivery {
        receipt: Receipt(*receipts),
        message: incoming(message),
        position: Some(Position { topic, partition, generation, offset }),
    })
}

pub(super) fn incoming(message: &BorrowedMessage<'_>) -> Incoming {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    let headers = headers.map(|header| Header {
        name: header.key.to_ascii_lowercase(),
        value: header.value.map(text).unwrap_or_default(),
    });
    Incoming {
        source: format!("kafka/{}", message.topic()),
        place: format!("{}:{}", message.partition(), message.offset()),
        subject: message.topic().to_owned(),
        key: message.key().map(text),
        headers: headers.collect(),
        payload: message.payload().unwrap_or_default().to_vec().into(),
    }
}

/// Bytes as text; those that are none, in hexadecimal digits.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.to_owned(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
