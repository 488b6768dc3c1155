//! The thread on which one lane's producer lives. Its calls block, and so nothing else waits for them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, PurgeConfig};
use rdkafka::types::RDKafkaRespErr;
use semel_core::outbox::Position;
use tokio::sync::oneshot;

use super::positions::{Kept, Positions};
use super::{Reports, Trouble};
use crate::kafka::words;
use crate::sinks::{Parcel, Receipt};

/// Longest wait until a batch has landed.
const LAND_MAX: Duration = Duration::from_secs(30);
/// Longest wait for what a broker has to say.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often the client is asked for news while there is none. Its own waiting takes the whole time even if some
/// comes, and keeps a core busy for the last millisecond of it.
const NAP: Duration = Duration::from_micros(300);
/// How often a broker is asked whether a topic is there by now, and how long the client is given to say what it
/// takes back.
const ASK: Duration = Duration::from_millis(50);

/// What a lane has in its hand: a way to order its thread around. Dropping it ends the thread.
pub(super) struct Hand {
    orders: mpsc::Sender<Order>,
    pub(super) atomic: bool,
}

struct Order {
    parcels: Vec<Parcel>,
    position: Option<Position>,
    answer: oneshot::Sender<Vec<Receipt>>,
}

impl Hand {
    pub(super) fn order(
        &self,
        parcels: Vec<Parcel>,
        position: Option<Position>,
    ) -> oneshot::Receiver<Vec<Receipt>> {
        let (answer, answered) = oneshot::channel();
        // A thread that has ended drops the answer, which says so.
        let _ = self.orders.send(Order { parcels, position, answer });
        answered
    }
}

/// The work of one lane's thread.
pub(super) struct Work {
    config: ClientConfig,
    positions: Option<Positions>,
    single: Arc<AtomicBool>,
    producer: BaseProducer<Reports>,
    /// It sends one record per request, so an error is about that record and no other.
    certain: bool,
    /// After trouble it is made anew: it may have ended to keep the order.
    broken: bool,
    known: BTreeSet<String>,
}

impl Work {
    /// Opens a lane, shuts out who had it before, and says how far they came. Call it on a thread that may
    /// wait.
    pub(super) fn begin(
        config: ClientConfig,
        positions: Option<Positions>,
        single: Arc<AtomicBool>,
    ) -> Result<(Option<Position>, Hand), Trouble> {
        let certain = single.load(Ordering::Relaxed);
        let producer = producer(&config, positions.as_ref(), certain)?;
        let mut landed = None;
        if let Some(positions) = &positions {
            positions.prepare()?;
            producer.init_transactions(ANSWER_MAX).map_err(|error| trouble(&producer, &error))?;
            match positions.read()? {
                Kept::Nothing => {}
                Kept::Landed(position) => landed = Some(position),
                Kept::Stale => forget(&producer, positions).map_err(|error| trouble(&producer, &error))?,
            }
        }
        let (orders, ordered) = mpsc::channel();
        let hand = Hand { orders, atomic: positions.is_some() };
        let known = BTreeSet::new();
        let mut work = Self { config, positions, single, producer, certain, broken: false, known };
        std::thread::Builder::new()
            .name("semel-kafka".into())
            .spawn(move || ordered.into_iter().for_each(|order| work.serve(order)))
            .map_err(|error| Trouble::Down(format!("no thread for the Kafka client: {error}")))?;
        Ok((landed, hand))
    }

    fn serve(&mut self, Order { parcels, position, answer }: Order) {
        let receipts = match (self.positions.clone(), position) {
            (Some(positions), Some(position)) => self.transact(&positions, &parcels, &position),
            _ => self.publish(&parcels, &answer),
        };
        // Whoever asked may be gone; then it is published again by the next.
        let _ = answer.send(receipts);
    }

    /// Publishes records that the broker keeps in order, and waits until it has them.
    fn publish(&mut self, parcels: &[Parcel], answer: &oneshot::Sender<Vec<Receipt>>) -> Vec<Receipt> {
        let mut receipts = vec![Receipt::Unsent; parcels.len()];
        if let Err(reason) = self.mend().and_then(|()| self.look_up(parcels, &mut receipts)) {
            return vec![Receipt::Down(reason); parcels.len()];
        }
        let deadline = Instant::now() + LAND_MAX;
        let mut closed: HashSet<&str> = HashSet::new();
        let mut flying = 0;
        for (index, parcel) in parcels.iter().enumerate() {
            let key = parcel.key.as_deref();
            if receipts[index] == Receipt::Unsent && !key.is_some_and(|key| closed.contains(key)) {
                match self.send(index, parcel, deadline) {
                    Ok(()) => {
                        flying += 1;
                        continue;
                    }
                    Err(code) => receipts[index] = verdict(code, parcel, true),
                }
            }
            closed.extend(key);
        }
        let late = |receipt: &Receipt| matches!(receipt, Receipt::Down(_));
        let mut reports = Vec::with_capacity(flying);
        while reports.len() < flying && Instant::now() < deadline && !answer.is_closed() {
            let news = self.news();
            if news.is_empty() {
                std::thread::sleep(NAP);
            }
            reports.extend(news);
        }
        if reports.len() < flying {
            // Nothing more may leave; what is on its way may land or not.
            self.producer.purge(PurgeConfig::default().queue().inflight());
            self.producer.poll(ASK);
            reports.extend(self.producer.context().take());
            self.broken = true;
            let reason = || Receipt::Down(format!("Kafka did not take the messages within {LAND_MAX:?}"));
            receipts
                .iter_mut()
                .filter(|receipt| **receipt == Receipt::Unsent)
                .for_each(|one| *one = reason());
        }
        self.broken |= reports.iter().any(|(_, told)| told.is_err());
        for (index, told) in reports {
            receipts[index] = match told {
                Ok(()) => Receipt::Landed,
                // We took it back ourselves, because it was not taken in time.
                Err(Code::PurgeQueue | Code::PurgeInflight) if late(&receipts[index]) => continue,
                Err(code) => self.failure(code, &parcels[index]),
            };
        }
        if !receipts.iter().any(|receipt| matches!(receipt, Receipt::Down(_))) {
            self.together_again();
        }
        receipts
    }

    /// A broker that finds a batch too large does not say which record is: they are sent one by one then.
    fn failure(&self, code: Code, parcel: &Parcel) -> Receipt {
        if code == Code::MessageSizeTooLarge && !self.certain {
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
    fn transact(&mut self, positions: &Positions, parcels: &[Parcel], position: &Position) -> Vec<Receipt> {
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
        let value = positions.value(position);
        let mark = BaseRecord::with_opaque_to(&positions.topic, parcels.len())
            .partition(positions.partition)
            .key(&positions.key)
            .payload(&value);
        if let Err((error, _)) = self.producer.send(mark) {
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

    /// Makes the producer anew after trouble.
    fn mend(&mut self) -> Result<(), String> {
        if self.broken {
            self.certain = self.single.load(Ordering::Relaxed);
            let made = producer(&self.config, self.positions.as_ref(), self.certain);
            self.producer = made.map_err(|error| error.to_string())?;
            self.broken = false;
        }
        Ok(())
    }

    /// Refuses what goes to topics that do not exist.
    fn look_up(&mut self, parcels: &[Parcel], receipts: &mut [Receipt]) -> Result<(), String> {
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        for parcel in parcels {
            if self.known.contains(&parcel.topic) || missing.contains(parcel.topic.as_str()) {
                continue;
            }
            match self.exists(&parcel.topic)? {
                true => drop(self.known.insert(parcel.topic.clone())),
                false => drop(missing.insert(&parcel.topic)),
            }
        }
        for (parcel, receipt) in parcels.iter().zip(receipts) {
            if missing.contains(parcel.topic.as_str()) {
                *receipt = Receipt::Refused(no_topic(&parcel.topic));
            }
        }
        Ok(())
    }

    fn exists(&self, topic: &str) -> Result<bool, String> {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let metadata = self.producer.client().fetch_metadata(Some(topic), ANSWER_MAX);
            let metadata = metadata.map_err(|error| format!("Kafka does not answer: {error}"))?;
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            match found.and_then(|found| found.error()) {
                None => return Ok(found.is_some_and(|found| !found.partitions().is_empty())),
                // It is being made.
                Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) if Instant::now() < deadline => {
                    std::thread::sleep(ASK);
                }
                Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {
                    return Err(format!("the topic `{topic}` has no leader"));
                }
                Some(_) => return Ok(false),
            }
        }
    }

    fn send(&self, index: usize, parcel: &Parcel, deadline: Instant) -> Result<(), Code> {
        loop {
            let mut headers = OwnedHeaders::new_with_capacity(parcel.headers.len() + 1);
            headers = headers.insert(Header { key: "content-type", value: Some(&parcel.content_type) });
            for (name, value) in parcel.headers.iter().filter(|(name, _)| name != "content-type") {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let record =
                BaseRecord::with_opaque_to(&parcel.topic, index).payload(&parcel.body[..]).headers(headers);
            let record = match &parcel.key {
                Some(key) => record.key(key.as_str()),
                None => record,
            };
            match self.producer.send(record) {
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
    positions: Option<&Positions>,
    single: bool,
) -> Result<BaseProducer<Reports>, Trouble> {
    let mut config = config.clone();
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
    match positions {
        Some(positions) => config.set("transactional.id", &positions.transactional_id),
        None => config.set("enable.gapless.guarantee", "true"),
    };
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

/// What an error says of one record. `certain`: it is about this one and no other.
fn verdict(code: Code, parcel: &Parcel, certain: bool) -> Receipt {
    match code {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize if certain => Receipt::Refused(format!(
            "{} bytes are more than the topic or the client takes: {code}",
            parcel.body.len()
        )),
        Code::InvalidRecord | Code::InvalidMessage if certain => Receipt::Refused(code.to_string()),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::InvalidTopic => {
            Receipt::Refused(no_topic(&parcel.topic))
        }
        Code::TopicAuthorizationFailed => {
            Receipt::Failed { reason: format!("`{}`: {code}", parcel.topic), after: None }
        }
        // It only went with another.
        Code::GaplessGuarantee | Code::PurgeQueue => Receipt::Unsent,
        _ => Receipt::Down(code.to_string()),
    }
}

fn no_topic(topic: &str) -> String {
    format!("the topic `{topic}` does not exist: create it, then replay this message")
}

fn first_bad(receipts: &[Receipt]) -> Option<usize> {
    receipts.iter().position(|receipt| matches!(receipt, Receipt::Refused(_) | Receipt::Failed { .. }))
}

/// Only one receipt, the rest unsent.
fn alone(receipts: &[Receipt], index: usize) -> Vec<Receipt> {
    let at = |n: usize| if n == index { receipts[n].clone() } else { Receipt::Unsent };
    (0..receipts.len()).map(at).collect()
}
