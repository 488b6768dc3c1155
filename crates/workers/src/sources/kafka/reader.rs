//! The thread that polls librdkafka, and what it does on a rebalance.

use std::collections::{HashMap, VecDeque};
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
use semel_core::inbox::{self, Assignment, Inbox, Incoming, Kept};
use semel_core::message::Header;
use semel_core::{Backoff, Nonce, mutant};
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

/// Where a partition ends is asked so often before it is believed that it ends too early: a broker that has just begun to lead it
/// may not know of the last messages yet.
const LOOKS_AT_THE_END: u32 = 3;
/// The pause between two of these looks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

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
    /// Why a partition is read by nobody here, until the thread passes it on.
    refusal: Mutex<Option<Error>>,
    home: Handle,
}

impl Assigned {
    pub(super) fn new(inbox: Arc<dyn Inbox>, options: &Options) -> Self {
        Self {
            inbox,
            group: options.group.clone(),
            start: options.start,
            generations: Mutex::default(),
            refusal: Mutex::default(),
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

    /// Time does not heal it: whoever consumes must hear of it, and end.
    fn refuse(&self, error: Error) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn refusal(&self) -> Option<Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn generation(&self, topic: &str, partition: i32) -> Option<u64> {
        self.lock().get(&(topic.to_owned(), partition)).copied()
    }

    /// Takes a partition in the database, and says under which generation and where to go on. Asks until it
    /// answers: without its word nothing may be read.
    fn take(
        &self,
        consumer: &BaseConsumer<Context>,
        topic: &str,
        partition: i32,
    ) -> Result<(u64, Offset), Error> {
        let mut backoff = Backoff::new(Nonce::random());
        loop {
            match self.try_to_take(consumer, topic, partition) {
                Ok((generation, next)) => {
                    self.lock().insert((topic.to_owned(), partition), generation);
                    tracing::info!(topic, partition, generation, ?next, "a partition is ours");
                    return Ok((generation, next));
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, topic, partition, "the database does not say where to go on");
                    std::thread::sleep(backoff.next_pause());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Where a reader begins at the end, that end is written down at once: what is written after it must be
    /// read, also if this reader ends before it has applied anything.
    fn try_to_take(
        &self,
        consumer: &BaseConsumer<Context>,
        topic: &str,
        partition: i32,
    ) -> Result<(u64, Offset), Error> {
        let assigned = self.home.block_on(self.inbox.assign(&self.group, topic, partition))?;
        let Assignment { generation, next } = assigned;
        match (next, self.start) {
            (Some(next), _) => {
                self.check_the_end(consumer, topic, partition, next)?;
                return Ok((generation, Offset::Offset(next)));
            }
            (None, Start::Beginning) => return Ok((generation, Offset::Beginning)),
            (None, Start::End) => {}
        }
        let end = end_of(consumer, topic, partition)?;
        let begin = inbox::Offset { topic: topic.to_owned(), partition, generation, first: end, next: end };
        match self.home.block_on(self.inbox.set_aside(&self.group, &[], &[begin]))? {
            Kept::Kept => Ok((generation, Offset::Offset(end))),
            Kept::Fenced => {
                Err(Error::new(Kind::Busy, "somebody else took the partition in the same moment"))
            }
        }
    }

    /// Refuses to go on beyond the end of a partition. Kafka would begin at its beginning, the database would refuse
    /// what is read there, and once there were as many messages as before, the rest of them would be passed over.
    fn check_the_end(
        &self,
        consumer: &BaseConsumer<Context>,
        topic: &str,
        partition: i32,
        next: i64,
    ) -> Result<(), Error> {
        let mut end = 0;
        for look in 0..LOOKS_AT_THE_END {
            if look > 0 {
                std::thread::sleep(LOOK_PAUSE);
            }
            end = end_of(consumer, topic, partition)?;
            if next <= end || mutant::on("kafka-source-end-unchecked") {
                return Ok(());
            }
        }
        let group = &self.group;
        let text = format!(
            "the group {group} has applied partition {partition} of the Kafka topic {topic} up to offset {next}, and it ends at \
             {end}: the topic was deleted and made anew, or has lost its end. Reading on would pass over messages, so nothing \
             is read. `semel inbox rewind --group {group} --topic {topic}` lets the group read it from its beginning; what it \
             has applied, its ledger knows"
        );
        Err(Error::new(Kind::WentBack, text))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, i32), u64>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a partition ends: the offset of the next message.
fn end_of(consumer: &BaseConsumer<Context>, topic: &str, partition: i32) -> Result<i64, Error> {
    let failed = |error| told("Kafka does not say where a partition ends", &error);
    let (_, end) = consumer.fetch_watermarks(topic, partition, ANSWER_MAX).map_err(failed)?;
    Ok(end)
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
                let given = self.taken(consumer, partitions);
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
    /// The partitions with the places to go on at. One that cannot be gone on with is read by nobody here, and whoever consumes
    /// is told.
    fn taken(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) -> TopicPartitionList {
        let mut given = TopicPartitionList::new();
        for element in partitions.elements() {
            let (topic, partition) = (element.topic(), element.partition());
            match self.0.take(consumer, topic, partition) {
                Ok((_, offset)) => {
                    let _ = given.add_partition_offset(topic, partition, offset);
                }
                Err(error) => self.0.refuse(error),
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
        // In the order they were read.
        let mut held: VecDeque<Result<Delivery, Error>> = VecDeque::new();
        while !self.deliveries.is_closed() {
            self.obey();
            held.extend(self.assigned.refusal().map(Err));
            if let Some(delivery) = held.pop_front() {
                if let Err(TrySendError::Full(delivery)) = self.deliveries.try_send(delivery) {
                    held.push_front(delivery);
                    held.extend(self.stay_a_member().map(Ok));
                }
                continue;
            }
            let read = match self.consumer.poll(POLL) {
                None => None,
                Some(Ok(message)) => delivery(&self.assigned, &message, &mut self.receipts).map(Ok),
                Some(Err(error)) => Some(Err(told("reading from Kafka failed", &error))),
            };
            held.extend(read);
        }
        // The consumer leaves the group when it is dropped.
    }

    /// Nobody takes messages now: polls without reading any, so that Kafka knows we are alive.
    /// Paused partitions give nothing. One that was assigned in this very poll may; what it gave counts as
    /// read by now and must be kept, and in the next round it is paused like the others.
    fn stay_a_member(&mut self) -> Option<Delivery> {
        let all = self.consumer.assignment().ok()?;
        if self.consumer.pause(&all).is_err() {
            std::thread::sleep(POLL);
            return None;
        }
        let kept = match self.consumer.poll(POLL) {
            Some(Ok(message)) => delivery(&self.assigned, &message, &mut self.receipts),
            Some(Err(_)) | None => None,
        };
        let _ = self.consumer.resume(&all);
        kept
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
            match self.assigned.take(&self.consumer, &topic, partition) {
                Ok((generation, offset)) => {
                    if let Err(error) = self.consumer.seek(&topic, partition, offset, ANSWER_MAX) {
                        tracing::warn!(%error, topic, partition, "Kafka did not go back to where the database is");
                        // Kafka goes on further along. Under this generation that would pass over what is
                        // not applied, so nothing may be read under it.
                        let taken = (topic, partition, generation);
                        self.assigned.forget(&taken);
                        self.again.push((Instant::now() + TAKE_AGAIN_AFTER, taken));
                    }
                }
                Err(error) => self.assigned.refuse(error),
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
