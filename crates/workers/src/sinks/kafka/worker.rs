//! The thread on which one lane's transactional producer lives. Its calls block, and so nothing else waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, PurgeConfig};
use semel_core::outbox::Position;
use tokio::sync::oneshot;

use super::positions::{Kept, Positions};
use super::record::{is_of_one_record, record, verdict};
use super::shared::one_at_a_time;
use super::topics::Found;
use super::{Reports, Trouble, topics};
use crate::kafka::words;
use crate::sinks::{Parcel, Receipt};

/// Longest wait until a batch has landed.
const LAND_MAX: Duration = Duration::from_secs(30);
/// Longest wait for what a broker has to say.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often the client is asked for news while there is none. Its own waiting takes the whole time even if some
/// comes, and keeps a core busy for the last millisecond of it.
const NAP: Duration = Duration::from_micros(300);

/// What a lane has in its hand: a way to order its thread around. Dropping it ends the thread.
pub(super) struct Hand {
    orders: mpsc::Sender<Order>,
}

struct Order {
    parcels: Vec<Parcel>,
    position: Position,
    answer: oneshot::Sender<Vec<Receipt>>,
}

impl Hand {
    pub(super) fn order(&self, parcels: Vec<Parcel>, position: Position) -> oneshot::Receiver<Vec<Receipt>> {
        let (answer, answered) = oneshot::channel();
        // A thread that has ended drops the answer, which says so.
        let _ = self.orders.send(Order { parcels, position, answer });
        answered
    }
}

/// The work of one lane's thread.
pub(super) struct Work {
    positions: Positions,
    single: Arc<AtomicBool>,
    producer: BaseProducer<Reports>,
    /// It sends one record per request, so an error is about that record and no other.
    certain: bool,
    /// After trouble the lane is opened again, by another.
    broken: bool,
    known: BTreeSet<String>,
}

impl Work {
    /// Opens a lane, shuts out who had it before, and says how far they came. Call it on a thread that may
    /// wait.
    pub(super) fn begin(
        config: ClientConfig,
        positions: Positions,
        single: Arc<AtomicBool>,
    ) -> Result<(Option<Position>, Hand), Trouble> {
        let certain = single.load(Ordering::Relaxed);
        let producer = producer(&config, &positions, certain)?;
        positions.prepare()?;
        producer.init_transactions(ANSWER_MAX).map_err(|error| trouble(&producer, &error))?;
        let mut landed = None;
        match positions.read()? {
            Kept::Nothing => {}
            Kept::Landed(position) => landed = Some(position),
            Kept::Stale => forget(&producer, &positions).map_err(|error| trouble(&producer, &error))?,
        }
        let (orders, ordered) = mpsc::channel();
        let hand = Hand { orders };
        let known = BTreeSet::new();
        let mut work = Self { positions, single, producer, certain, broken: false, known };
        std::thread::Builder::new()
            .name("semel-kafka".into())
            .spawn(move || ordered.into_iter().for_each(|order| work.serve(order)))
            .map_err(|error| Trouble::Down(format!("no thread for the Kafka client: {error}")))?;
        Ok((landed, hand))
    }

    fn serve(&mut self, Order { parcels, position, answer }: Order) {
        let receipts = self.transact(&parcels, &position);
        // Whoever asked may be gone; then it is published again by the next.
        let _ = answer.send(receipts);
    }

    /// A broker that finds a batch too large does not say which record is: they are sent one by one then.
    fn failure(&self, code: Code, parcel: &Parcel) -> Receipt {
        if is_of_one_record(code) && !self.certain {
            self.single.store(true, Ordering::Relaxed);
            return Receipt::Unsent;
        }
        verdict(code, parcel, self.certain)
    }

    /// Once it is known which record was in the way, the others go together again.
    fn together_again(&mut self) {
        if self.certain {
            self.single.store(false, Ordering::Relaxed);
            self.broken = true;
        }
    }

    /// Publishes records and the lane's position in one transaction: all of it, or nothing.
    fn transact(&mut self, parcels: &[Parcel], position: &Position) -> Vec<Receipt> {
        let mut receipts = vec![Receipt::Unsent; parcels.len()];
        let down = |reason: String| vec![Receipt::Down(reason); parcels.len()];
        if self.broken {
            return down("the producer ended; the lane is opened again".into());
        }
        if let Err(reason) = self.look_up(parcels, &mut receipts) {
            return down(reason);
        }
        if receipts.iter().any(|receipt| *receipt != Receipt::Unsent) {
            return receipts;
        }
        self.producer.context().take();
        if let Err(error) = self.producer.begin_transaction() {
            return self.ended(&error, parcels.len());
        }
        let deadline = Instant::now() + LAND_MAX;
        for (index, parcel) in parcels.iter().enumerate() {
            if let Err(code) = self.send(index, parcel, deadline) {
                receipts[index] = verdict(code, parcel, true);
                return self.abort(receipts);
            }
        }
        let value = self.positions.value(position);
        let mark = BaseRecord::with_opaque_to(&self.positions.topic, parcels.len())
            .partition(self.positions.partition)
            .key(&self.positions.key)
            .payload(&value);
        let marked = self.producer.send(mark).map_err(|(error, _)| error);
        if let Err(error) = marked {
            self.abort(Vec::new());
            return down(format!("how far the lane came was not written: {error}"));
        }
        loop {
            match self.producer.commit_transaction(LAND_MAX) {
                Ok(()) => {
                    self.together_again();
                    return vec![Receipt::Landed; parcels.len()];
                }
                Err(KafkaError::Transaction(error)) if error.is_retriable() && Instant::now() < deadline => {}
                Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                    for (index, told) in self.producer.context().take() {
                        match (told, parcels.get(index)) {
                            (Err(code), Some(parcel)) => receipts[index] = self.failure(code, parcel),
                            (Err(_), None) | (Ok(()), _) => {}
                        }
                    }
                    let reason = error.to_string();
                    let receipts = self.abort(receipts);
                    // One reason is in the way; the rest only went with it.
                    return match first_bad(&receipts) {
                        Some(bad) => alone(&receipts, bad),
                        None => down(reason),
                    };
                }
                Err(error) => return self.ended(&error, parcels.len()),
            }
        }
    }

    /// Ends a transaction as if it had never been.
    fn abort(&mut self, receipts: Vec<Receipt>) -> Vec<Receipt> {
        // Aborting waits for reports of all that was sent, and only polling brings them.
        self.producer.purge(PurgeConfig::default().queue().inflight());
        let deadline = Instant::now() + ANSWER_MAX;
        while self.producer.in_flight_count() > 0 && Instant::now() < deadline {
            if self.news().is_empty() {
                std::thread::sleep(NAP);
            }
        }
        if let Err(error) = self.producer.abort_transaction(ANSWER_MAX) {
            tracing::warn!(target: "semel::relay", %error, "a transaction was not aborted; the lane is opened again");
            self.broken = true;
        }
        self.producer.context().take();
        receipts
    }

    fn ended(&mut self, error: &KafkaError, count: usize) -> Vec<Receipt> {
        self.broken = true;
        let fenced = matches!(
            error.rdkafka_error_code(),
            Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
        );
        let receipt = if fenced { Receipt::Fenced } else { Receipt::Down(words(error)) };
        vec![receipt; count]
    }

    /// What became of records since it was last asked.
    fn news(&self) -> Vec<(usize, Result<(), Code>)> {
        self.producer.poll(Duration::ZERO);
        self.producer.context().take()
    }

    /// Refuses what goes to topics that do not exist.
    fn look_up(&mut self, parcels: &[Parcel], receipts: &mut [Receipt]) -> Result<(), String> {
        let mut unusable = Vec::new();
        for topic in topics::unknown(&self.known, parcels) {
            match topics::find(self.producer.client(), topic)? {
                Found::There => drop(self.known.insert(topic.to_owned())),
                found => unusable.push((topic, found)),
            }
        }
        topics::refuse(&unusable, parcels, receipts);
        Ok(())
    }

    fn send(&self, index: usize, parcel: &Parcel, deadline: Instant) -> Result<(), Code> {
        loop {
            match self.producer.send(record(parcel, index)) {
                Ok(()) => return Ok(()),
                Err((error, _)) => match error.rdkafka_error_code() {
                    // Reports stay where they are until they are taken.
                    Some(Code::QueueFull) if Instant::now() < deadline => {
                        self.producer.poll(Duration::ZERO);
                        std::thread::sleep(NAP);
                    }
                    code => return Err(code.unwrap_or(Code::Fail)),
                },
            }
        }
    }
}

fn producer(
    config: &ClientConfig,
    positions: &Positions,
    single: bool,
) -> Result<BaseProducer<Reports>, Trouble> {
    let mut config = config.clone();
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
    one_at_a_time(&mut config);
    config.set("transactional.id", &positions.transactional_id);
    if single {
        config.set("batch.num.messages", "1");
    }
    config.create_with_context(Reports::default()).map_err(|error| Trouble::Unusable(words(&error)))
}

/// Removes what was written of a lane, in a transaction like any other.
fn forget(producer: &BaseProducer<Reports>, positions: &Positions) -> Result<(), KafkaError> {
    producer.begin_transaction()?;
    let record: BaseRecord<'_, String, [u8], usize> =
        BaseRecord::with_opaque_to(&positions.topic, 0).partition(positions.partition).key(&positions.key);
    producer.send(record).map_err(|(error, _)| error)?;
    producer.commit_transaction(ANSWER_MAX)
}

fn trouble(producer: &BaseProducer<Reports>, error: &KafkaError) -> Trouble {
    producer.poll(Duration::ZERO);
    match (producer.context().denied(), error.rdkafka_error_code()) {
        (Some(denied), _) => Trouble::Unusable(format!("Kafka does not let us in: {denied}")),
        (None, Some(Code::TransactionalIdAuthorizationFailed)) => {
            Trouble::Unusable(format!("Kafka does not allow transactions: {error}"))
        }
        (None, _) => Trouble::Down(format!("Kafka does not answer: {error}")),
    }
}

fn first_bad(receipts: &[Receipt]) -> Option<usize> {
    receipts.iter().position(|receipt| matches!(receipt, Receipt::Refused(_) | Receipt::Failed { .. }))
}

/// Only one receipt, the rest unsent.
fn alone(receipts: &[Receipt], index: usize) -> Vec<Receipt> {
    let at = |n: usize| if n == index { receipts[n].clone() } else { Receipt::Unsent };
    (0..receipts.len()).map(at).collect()
}
