//! The thread that polls librdkafka, and what it does on a rebalance.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{self, Incoming, Kept};
use semel_core::message::Header;
use semel_core::mutant;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::ahead::Given;
use super::assigned::{Assigned, Taken};
use super::reading::{Found, Reading};
use super::unchecked::{From, How, Seen, Unchecked};
use super::{ANSWER_MAX, Options, is_fatal, told};
use crate::consumer::{Delivery, Position, Receipt};

/// How long one poll waits; so long a command may wait, too.
const POLL: Duration = Duration::from_millis(100);
/// How long Kafka is given to say that a partition went to somebody else, before it is taken again.
const TAKE_AGAIN_AFTER: Duration = Duration::from_secs(3);
/// How long one answer about the end of a partition is waited for.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// So many times as long as looking took, nothing is looked at.
const LOOKS_SHARE: u32 = 4;

/// How often it is asked how far partitions were read behind their messages, and which are quiet.
const PASS_EVERY: Duration = Duration::from_secs(1);

/// Where messages go.
pub(super) type Deliveries = Sender<Result<Given, Error>>;

/// What the source wants of the thread.
pub(super) enum Command {
    /// The database refused this assignment. If Kafka still says the partition is ours, take it again.
    TakeAgain(Taken),
}

/// librdkafka's view of what is ours.
struct Context {
    assigned: Arc<Assigned>,
    deliveries: Deliveries,
}

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
        let done = match (is_assignment, cooperative) {
            // A partition is given to librdkafka when it is known where to go on; see `Thread::look`.
            (true, cooperative) => {
                for element in partitions.elements() {
                    let (topic, partition) = (element.topic(), element.partition());
                    if let Err(error) = self.assigned.take(topic, partition, How::Assign, &self.deliveries) {
                        self.assigned.refuse(error);
                    }
                }
                let none = TopicPartitionList::new();
                if cooperative { consumer.incremental_assign(&none) } else { consumer.assign(&none) }
            }
            (false, cooperative) => {
                for element in partitions.elements() {
                    let place = (element.topic().to_owned(), element.partition());
                    self.assigned.lock().remove(&place);
                    self.assigned.unchecked().remove(&place);
                }
                if cooperative { give_up(consumer, partitions) } else { consumer.unassign() }
            }
        };
        if let Err(error) = done {
            tracing::error!(%error, "a rebalance of Kafka was not carried out");
        }
    }
}

/// Takes partitions from librdkafka. Those it was never given it would refuse, and the others with them.
fn give_up(consumer: &BaseConsumer<Context>, partitions: &TopicPartitionList) -> KafkaResult<()> {
    let all = consumer.assignment()?;
    let mut given = TopicPartitionList::new();
    for element in partitions.elements() {
        if all.find_partition(element.topic(), element.partition()).is_some() {
            given.add_partition(element.topic(), element.partition());
        }
    }
    consumer.incremental_unassign(&given)
}

/// Starts the thread. It ends when the source is dropped.
pub(super) async fn start(
    options: &Options,
    assigned: Arc<Assigned>,
    deliveries: Deliveries,
    commands: Receiver<Command>,
) -> Result<(), Error> {
    let (options, (ready, heard)) = (options.clone(), oneshot::channel());
    let run = move || match open(&options, assigned.clone(), deliveries.clone()) {
        Ok(consumer) => {
            let _ = ready.send(Ok(()));
            Thread {
                consumer,
                assigned,
                deliveries,
                commands,
                again: Vec::new(),
                look_at: Instant::now(),
                pass_at: Instant::now(),
                quiet: Vec::new(),
                gone: Vec::new(),
                receipts: 0,
            }
            .run();
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

fn open(
    options: &Options,
    assigned: Arc<Assigned>,
    deliveries: Deliveries,
) -> Result<BaseConsumer<Context>, Error> {
    let failed = |error: KafkaError| told("Kafka cannot be read", &error);
    let consumer: BaseConsumer<Context> =
        options.config().create_with_context(Context { assigned, deliveries }).map_err(failed)?;
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
    deliveries: Deliveries,
    commands: Receiver<Command>,
    again: Vec<(Instant, Taken)>,
    /// Not before that.
    look_at: Instant,
    pass_at: Instant,
    /// To be looked at, though they are read.
    quiet: Vec<(String, i32)>,
    /// Seen by the last looks.
    gone: Vec<Given>,
    receipts: u64,
}

impl Thread {
    fn run(mut self) {
        // In the order they were read.
        let mut held: VecDeque<Result<Given, Error>> = VecDeque::new();
        while !self.deliveries.is_closed() {
            self.obey();
            held.extend(self.pass().into_iter().map(|passed| Ok(Given::Passed(passed))));
            self.look();
            held.extend(self.gone.drain(..).map(Ok));
            held.extend(self.assigned.refusal().map(Err));
            if let Some(given) = held.pop_front() {
                if let Err(TrySendError::Full(given)) = self.deliveries.try_send(given) {
                    held.push_front(given);
                    held.extend(self.stay_a_member().map(|kept| kept.map(Given::Message)));
                }
                continue;
            }
            let read = match self.consumer.poll(POLL) {
                None => None,
                Some(Ok(message)) => delivery(&self.assigned, &message, &mut self.receipts)
                    .map(|read| Ok(Given::Message(read))),
                Some(Err(error)) if is_displaced(&error) => {
                    self.doubt();
                    None
                }
                Some(Err(error)) => Some(Err(told("reading from Kafka failed", &error))),
            };
            held.extend(read);
        }
        // The consumer leaves the group when it is dropped.
    }

    /// Nobody takes messages now: polls without reading any, so that Kafka knows we are alive.
    /// Paused partitions give nothing. One that was assigned in this very poll may; what it gave counts as
    /// read by now and must be kept, and in the next round it is paused like the others.
    /// An error after which there is nothing more to read is said once, and so kept as well.
    fn stay_a_member(&mut self) -> Option<Result<Delivery, Error>> {
        let all = self.consumer.assignment().ok()?;
        if self.consumer.pause(&all).is_err() {
            std::thread::sleep(POLL);
            return None;
        }
        let kept = match self.consumer.poll(POLL) {
            Some(Ok(message)) => delivery(&self.assigned, &message, &mut self.receipts).map(Ok),
            Some(Err(error)) if is_displaced(&error) => {
                self.doubt();
                None
            }
            Some(Err(error)) if is_fatal(&error) => Some(Err(told("reading from Kafka failed", &error))),
            Some(Err(_)) | None => None,
        };
        let _ = self.consumer.resume(&all);
        kept
    }

    /// In some partition there is nothing, or nothing yet, at the place that was to be read next; the client does not say in
    /// which, and reads it no more. All are looked at.
    fn doubt(&mut self) {
        for reading in self.assigned.lock().values_mut() {
            reading.doubt();
        }
        self.pass_at = Instant::now();
    }

    /// How far partitions were read behind their messages: marks that end transactions, and what was aborted. It is kept,
    /// for once Kafka has deleted those nobody can tell them from messages. The client knows it by itself and is not
    /// asked for long.
    fn pass(&mut self) -> Vec<inbox::Offset> {
        let now = Instant::now();
        if now < self.pass_at {
            return Vec::new();
        }
        self.pass_at = now + PASS_EVERY;
        let Ok(positions) = self.consumer.position() else { return Vec::new() };
        let (mut passed, mut quiet) = (Vec::new(), Vec::new());
        for ((topic, partition), reading) in self.assigned.lock().iter_mut() {
            if let Some(next) = reading.passed(position(&positions, topic, *partition), now) {
                let (topic, partition, generation) = (topic.clone(), *partition, reading.generation);
                passed.push(inbox::Offset { topic, partition, generation, first: next, next });
            }
            if reading.is_due(now) {
                quiet.push((topic.clone(), *partition));
            }
        }
        self.quiet = quiet;
        passed
    }

    /// Looks at one partition that is read, or should be. The client says it only once if it stops, and pausing can drop
    /// that with what it had read ahead. One that was overtaken by deletion is told behind all that was read before
    /// it, for that can still be applied. Then the database says whether it is still ours.
    fn look_at_quiet(&mut self) -> bool {
        let Some((topic, partition)) = self.quiet.pop() else { return false };
        let ends = self.consumer.fetch_watermarks(&topic, partition, LOOK_MAX).ok();
        let position = self.consumer.position().ok().and_then(|all| position(&all, &topic, partition));
        let place = (topic, partition);
        let found = self
            .assigned
            .lock()
            .get_mut(&place)
            .map(|reading| (reading.compare(position, ends), reading.generation));
        let Some((found, generation)) = found else { return true };
        let taken = (place.0, place.1, generation);
        match found {
            Found::There => {}
            Found::Gone { next, first } => {
                let error = self.assigned.begins_late(&taken, next, first);
                let (topic, partition, generation) = taken;
                let place = inbox::Offset { topic, partition, generation, first: next, next };
                self.gone.push(Given::Gone(place, error));
            }
            Found::Doubtful => {
                if let Err(error) = self.take_again(&taken) {
                    // It is read no more: time does not heal that.
                    let text =
                        format!("Kafka does not let go of a partition: {}", crate::kafka::words(&error));
                    self.assigned.refuse(Error::new(Kind::Closed, text));
                }
            }
        }
        true
    }

    /// Lets go of a partition and takes it anew, to be looked at as if it had just been assigned. What was read of it and is
    /// not applied yet is read again.
    fn take_again(&self, taken: &Taken) -> KafkaResult<()> {
        let (topic, partition, _) = taken;
        tracing::warn!(
            topic,
            partition,
            "Kafka may have nothing at some place; a partition is looked at again"
        );
        self.let_go(topic, *partition)?;
        self.assigned.forget(taken);
        if let Err(error) = self.assigned.take(topic, *partition, How::Assign, &self.deliveries) {
            self.assigned.refuse(error);
        }
        Ok(())
    }

    fn let_go(&self, topic: &str, partition: i32) -> KafkaResult<()> {
        let mut one = TopicPartitionList::new();
        one.add_partition(topic, partition);
        self.consumer.incremental_unassign(&one)
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
            if !ours
                || newer
                || self.assigned.unchecked().has(&topic, partition)
                || self.consumer.assignment_lost()
            {
                continue;
            }
            if let Err(error) = self.assigned.take(&topic, partition, How::Seek, &self.deliveries) {
                self.assigned.refuse(error);
            }
        }
    }

    /// Looks at partitions that were taken, and at those that are quiet. Whoever does not answer holds up nobody else: it is
    /// asked again later, and looking takes a small part of the thread's time.
    fn look(&mut self) {
        let began = Instant::now();
        if began < self.look_at || (self.quiet.is_empty() && self.assigned.unchecked().is_empty()) {
            return;
        }
        while began.elapsed() < POLL && !self.consumer.assignment_lost() {
            let (one, other) = (self.look_at_taken(), self.look_at_quiet());
            if !one && !other {
                break;
            }
        }
        self.look_at = Instant::now() + LOOKS_SHARE * began.elapsed();
    }

    /// Looks whether a partition that was taken is where the database goes on, and begins with it if it is.
    fn look_at_taken(&mut self) -> bool {
        let Some(mut unchecked) = self.assigned.unchecked().due(Instant::now()) else { return false };
        let (topic, partition, _) = &unchecked.taken;
        let ends = || match self.consumer.fetch_watermarks(topic, *partition, LOOK_MAX) {
            Ok(ends) => Some(ends),
            Err(error) => {
                // It says nothing about the partition.
                tracing::warn!(%error, topic, partition, "Kafka does not say where a partition begins and ends");
                None
            }
        };
        let seen = match unchecked.from {
            From::Next(next) => match ends().map_or(Seen::Nothing, |ends| unchecked.compare(next, ends)) {
                refused @ (Seen::Short { .. } | Seen::Gone { .. })
                    if !mutant::on("kafka-source-lost-place-refused") =>
                {
                    self.if_ours(&mut unchecked, next, refused)
                }
                seen => seen,
            },
            From::Beginning => match ends() {
                Some((first, _)) => self.if_ours(&mut unchecked, first, Seen::Is(first)),
                None => Seen::Nothing,
            },
            From::End => match ends() {
                Some((_, end)) => self.if_ours(&mut unchecked, end, Seen::Is(end)),
                None => Seen::Nothing,
            },
            From::Lost => {
                if let Err(error) = self.assigned.take(topic, *partition, unchecked.how, &self.deliveries) {
                    self.assigned.refuse(error);
                }
                return true;
            }
        };
        match seen {
            Seen::Is(offset) => self.begin(unchecked, offset),
            Seen::Nothing => self.assigned.unchecked().later(unchecked),
            Seen::Short { next, first, end } => {
                self.assigned.refuse(self.assigned.ends_early(&unchecked.taken, next, (first, end)));
            }
            Seen::Gone { next, first } => {
                self.assigned.refuse(self.assigned.begins_late(&unchecked.taken, next, first));
            }
        }
        true
    }

    /// What was seen, if the database keeps that the group goes on at `at`. Else the partition is not ours any more, and whoever
    /// took it since may have applied what is gone, or been told to begin elsewhere.
    fn if_ours(&self, unchecked: &mut Unchecked, at: i64, seen: Seen) -> Seen {
        match self.assigned.write_down(&unchecked.taken, at) {
            Ok(Kept::Kept) => return seen,
            Ok(Kept::Fenced) => {
                // Somebody else took it in the same moment; by the next look Kafka may have said so.
                unchecked.from = From::Lost;
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the database does not write down where a reader goes on");
            }
            Err(error) => self.assigned.refuse(error),
        }
        Seen::Nothing
    }

    /// Reads a partition from here on.
    fn begin(&mut self, mut unchecked: Unchecked, next: i64) {
        let offset = Offset::Offset(next);
        let Unchecked { taken, how, .. } = &unchecked;
        let (topic, partition, generation) = taken.clone();
        let stale = self.consumer.position().ok().and_then(|all| position(&all, &topic, partition));
        let reading = Reading::new(generation, next, stale);
        self.assigned.lock().insert((topic.clone(), partition), reading);
        let begun = match how {
            How::Assign => {
                let mut given = TopicPartitionList::new();
                given
                    .add_partition_offset(&topic, partition, offset)
                    .and_then(|()| self.consumer.incremental_assign(&given))
            }
            How::Seek => self.consumer.seek(&topic, partition, offset, ANSWER_MAX),
        };
        match begun {
            Ok(()) => tracing::info!(topic, partition, generation, ?offset, "a partition is ours"),
            Err(error) => {
                tracing::warn!(%error, topic, partition, "Kafka did not go to where the database is");
                // It may go on further along. Under this generation that would pass over what is not applied, so
                // nothing may be read under it.
                self.assigned.forget(taken);
                // In a partition that the client stopped reading it goes nowhere, however often it is told.
                if self.let_go(&topic, partition).is_ok() {
                    unchecked.how = How::Assign;
                }
                self.assigned.unchecked().later(unchecked);
            }
        }
    }
}

/// Where the client reads on, if it has read anything.
fn position(all: &TopicPartitionList, topic: &str, partition: i32) -> Option<i64> {
    match all.find_partition(topic, partition)?.offset() {
        Offset::Offset(position) => Some(position),
        _ => None,
    }
}

/// Whether there was nothing where the client was to read on.
fn is_displaced(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset)
}

/// `None` for a message of a partition that is not ours any more.
fn delivery(assigned: &Assigned, message: &BorrowedMessage<'_>, receipts: &mut u64) -> Option<Delivery> {
    let (place, offset) = ((message.topic().to_owned(), message.partition()), message.offset());
    let generation = {
        let mut readings = assigned.lock();
        let reading = readings.get_mut(&place)?;
        reading.delivered(offset);
        reading.generation
    };
    let (topic, partition) = place;
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
