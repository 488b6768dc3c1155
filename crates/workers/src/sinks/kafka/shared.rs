//! One producer, shared by all lines: what several lanes have for a partition travels in one request.
//!
//! Lines hand messages over on their own tasks; a thread of the producer's own waits for the client's reports and
//! passes them on to the batches they belong to. A producer *ends* for all lines at once: when the client stopped
//! rather than leave a gap, when a batch took too long, or when somebody no longer waits for theirs. From then on
//! nothing is handed over, what has not left yet is taken back, and what is on its way gets a moment to be answered.
//! The next producer begins only after the last word about the one before, so that nothing of it can come later than
//! what is sent again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext, PurgeConfig};
use semel_core::mutant;
use tokio::sync::{Notify, oneshot, watch};

use super::flight::{Flight, Ticket};
use super::record::{record, verdict};
use crate::kafka::words;
use crate::sinks::{Parcel, Receipt, Trouble};

/// How long the client waits for more messages of a partition: lanes come at different times, and each request costs the
/// broker as much as some messages. Longer, and it is the wait that is noticed.
const LINGER_MS: &str = "2";
/// How often the thread looks up from the reports, which reach it in between. A little more than a whole number of
/// milliseconds: the client waits only for whole ones, and would spend the rest of the last one asking without pause.
const TURN: Duration = Duration::from_micros(50_100);
/// The same while a producer ends.
const LAST_TURN: Duration = Duration::from_micros(4_100);
/// How long what is on its way may take to be answered once a producer ends.
const GRACE: Duration = Duration::from_secs(1);
/// The same if it is because somebody no longer waits: their lane may soon be somebody else's.
const SHORT_GRACE: Duration = Duration::from_millis(250);
/// Longest wait for those who still hold a producer that has ended.
const ALONE_MAX: Duration = Duration::from_secs(1);

/// Why a producer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Another follows that groups messages in another way. What is on its way lands as ever.
    Replaced,
    /// The client stopped by itself, rather than leave a gap.
    Gap,
    /// The client stopped by itself for another reason.
    Fatal(String),
    /// A batch was on its way for too long.
    Late,
    /// Somebody no longer waits for what they sent.
    Abandoned,
}

/// Passes reports on to whom they belong.
#[derive(Default)]
pub(super) struct Reports {
    /// Something went wrong since this was last looked at.
    ill: AtomicBool,
    /// Somebody waits for room in the client's queue.
    crowded: AtomicBool,
    room: Notify,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "semel::relay", ?level, facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "semel::relay", %error, reason, "kafka");
        self.ill.store(true, Ordering::Relaxed);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let told = match result {
            Ok(message) if has_a_place(message.offset()) => Ok(()),
            // The client infers from a later answer that this one has landed. A broker that knows nothing of the
            // producer takes a later request also if an earlier one never came; so it is asked again.
            Ok(_) => Err(Code::Fail),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        };
        if told.is_err() {
            self.ill.store(true, Ordering::Relaxed);
        }
        ticket.tell(told);
        if self.crowded.load(Ordering::Relaxed) && self.crowded.swap(false, Ordering::Relaxed) {
            self.room.notify_waiters();
        }
    }
}

/// Whether the broker itself has said where a message is.
fn has_a_place(offset: i64) -> bool {
    offset >= 0 || mutant::on("kafka-believes-inferences")
}

/// One producer, from its beginning to its end.
pub(super) struct Shared {
    producer: BaseProducer<Reports>,
    /// It sends one record per request, so an error is about that record and no other.
    pub(super) certain: bool,
    /// Held for reading while a batch is handed over: a producer ends before one, or after.
    end: RwLock<Option<End>>,
    flights: Mutex<Vec<Arc<Flight>>>,
    /// How long a batch may be on its way.
    land_max: Duration,
    over: watch::Sender<bool>,
}

/// What came of handing a batch over.
pub(super) enum Loaded {
    /// It is on its way. The receiver hears when all is said about it.
    Away(Arc<Flight>, oneshot::Receiver<()>),
    /// The client's queue has no room for any of it.
    Full,
    /// This producer has ended.
    Ended,
}

impl Shared {
    /// Makes a producer and its thread. `after` is called once there is nothing more to be heard of it.
    pub(super) fn start(
        config: &ClientConfig,
        certain: bool,
        land_max: Duration,
        after: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, Trouble> {
        let mut config = config.clone();
        if config.get("linger.ms").or(config.get("queue.buffering.max.ms")).is_none() {
            config.set("linger.ms", LINGER_MS);
        }
        // A message that the client gives up by itself would let later ones of its key pass.
        config.remove("delivery.timeout.ms");
        config.set("message.timeout.ms", (20 * land_max).as_millis().to_string());
        // Without reports of what landed nobody would ever hear of it.
        config.set("delivery.report.only.error", "false");
        one_at_a_time(&mut config);
        config.set("enable.idempotence", "true").set("acks", "all").set("enable.gapless.guarantee", "true");
        if certain {
            config.set("batch.num.messages", "1");
        }
        let producer = config
            .create_with_context(Reports::default())
            .map_err(|error| Trouble::Unusable(words(&error)))?;
        let (end, flights) = (RwLock::default(), Mutex::default());
        let shared =
            Arc::new(Self { producer, certain, end, flights, land_max, over: watch::Sender::new(false) });
        let served = shared.clone();
        // The last word is made on the thread: if there is none to be had, nobody is told, and nobody waits.
        let serve = move || LastWord { shared: served, after: Some(after) }.shared.serve();
        std::thread::Builder::new()
            .name("semel-kafka".into())
            .spawn(serve)
            .map_err(|error| Trouble::Down(format!("no thread for the Kafka client: {error}")))?;
        Ok(shared)
    }

    pub(super) fn ended(&self) -> Option<End> {
        self.end.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hears when there is nothing more to be heard of it.
    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    pub(super) fn client(&self) -> &rdkafka::client::Client<Reports> {
        self.producer.client()
    }

    /// Nothing more is handed over; what has not left is taken back, unless it may as well land.
    pub(super) fn end(&self, why: End) {
        let mut end = self.end.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*end, None | Some(End::Replaced)) {
            tracing::debug!(target: "semel::relay", ?why, "kafka: the shared producer ends");
            if why != End::Replaced {
                self.take_back();
            }
            *end = Some(why);
        }
    }

    fn take_back(&self) {
        self.producer.purge(PurgeConfig::default().queue().non_blocking());
    }

    /// Ends it if the client has stopped by itself.
    pub(super) fn end_if_stopped(&self) {
        if let Some((code, why)) = self.producer.client().fatal_error() {
            self.end(if code == Code::GaplessGuarantee {
                End::Gap
            } else {
                End::Fatal(format!("{code}: {why}"))
            });
        }
    }

    /// Hands over what has no receipt yet, but nothing behind a message of its key that the client does not take.
    pub(super) fn load(&self, parcels: &[Parcel], receipts: &mut [Receipt]) -> Loaded {
        let end = self.end.read().unwrap_or_else(PoisonError::into_inner);
        if end.is_some() && !mutant::on("kafka-sends-after-end") {
            return Loaded::Ended;
        }
        let (flight, done) = Flight::new(parcels.len());
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).push(flight.clone());
        let (mut sent, mut full) = (0_usize, false);
        let mut closed: HashSet<&str> = HashSet::new();
        for (index, parcel) in parcels.iter().enumerate() {
            let key = parcel.key.as_deref();
            if receipts[index] == Receipt::Unsent && !key.is_some_and(|key| closed.contains(key)) {
                let Err((error, _)) = self.producer.send(record(parcel, Box::new(flight.ticket(index))))
                else {
                    sent += 1;
                    // Of records that go one by one the next would be taken though this one is refused.
                    if self.certain && !mutant::on("kafka-single-overtakes") {
                        closed.extend(key);
                    }
                    continue;
                };
                flight.keep(index);
                match error.rdkafka_error_code().unwrap_or(Code::Fail) {
                    // Nothing may overtake it; the rest comes when this has landed.
                    Code::QueueFull => {
                        full = true;
                        break;
                    }
                    Code::Fatal => break,
                    code => receipts[index] = verdict(code, parcel, true),
                }
            }
            closed.extend(key);
        }
        flight.loaded();
        match (sent, full) {
            (0, true) => Loaded::Full,
            _ => Loaded::Away(flight, done),
        }
    }

    /// Hears when there may be room in the client's queue. Ask for it before trying again.
    pub(super) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        let room = self.producer.context().room.notified();
        self.producer.context().crowded.store(true, Ordering::Relaxed);
        room
    }

    /// The work of its thread: passes on what the client says, until the producer has ended and all is said.
    fn serve(&self) {
        let mut ends_at = None;
        loop {
            self.producer.poll(if ends_at.is_some() { LAST_TURN } else { TURN });
            if self.producer.context().ill.swap(false, Ordering::Relaxed) {
                self.end_if_stopped();
            }
            if self.still_flying().iter().any(|flight| flight.note_if_late(self.land_max)) {
                self.end(End::Late);
            }
            // First whether it has ended, then what still flies: nothing is handed over in between.
            let Some(end) = self.ended() else { continue };
            let flights = self.still_flying();
            if flights.is_empty() {
                return;
            }
            if end == End::Replaced {
                continue;
            }
            let grace = if end == End::Abandoned { SHORT_GRACE } else { GRACE };
            if Instant::now() >= *ends_at.get_or_insert_with(|| Instant::now() + grace) {
                self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
                let until = Instant::now() + SHORT_GRACE;
                while !self.still_flying().is_empty() && Instant::now() < until {
                    self.producer.poll(LAST_TURN);
                }
                return;
            }
            // What the client would send once more is taken back as well.
            self.take_back();
        }
    }

    fn still_flying(&self) -> Vec<Arc<Flight>> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|flight| !flight.is_done());
        flights.clone()
    }
}

/// One request at a time on each connection. With several, a broker that has no state of a producer yet may take the
/// second of a partition after it had to send the first back, and that one would be lost, or overtaken.
pub(super) fn one_at_a_time(config: &mut ClientConfig) {
    const NAMES: [&str; 2] = ["max.in.flight.requests.per.connection", "max.in.flight"];
    // What the client would refuse is left for it to refuse.
    let refused = |asked: &str| !asked.parse::<u32>().is_ok_and(|asked| (1..=5).contains(&asked));
    if NAMES.iter().any(|name| config.get(name).is_some_and(refused)) {
        return;
    }
    for name in NAMES {
        config.remove(name);
    }
    config.set(NAMES[0], "1");
}

/// What is left to do when a producer's thread ends, whatever ended it.
struct LastWord<After: FnOnce()> {
    shared: Arc<Shared>,
    after: Option<After>,
}

impl<After: FnOnce()> Drop for LastWord<After> {
    fn drop(&mut self) {
        if self.shared.ended().is_none() {
            self.shared.end(End::Fatal("the Kafka client ended by accident".into()));
        }
        self.shared.still_flying().iter().for_each(|flight| flight.give_up());
        if let Some(after) = self.after.take() {
            after();
        }
        self.shared.over.send_replace(true);
        // Taking a client apart blocks: it should not happen on the task of whoever looked at it last.
        let until = Instant::now() + ALONE_MAX;
        while Arc::strong_count(&self.shared) > 1 && Instant::now() < until {
            std::thread::sleep(LAST_TURN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_broker_gave_a_place_has_landed() {
        // G-40
        assert!(has_a_place(0) && has_a_place(7));
        assert!(!has_a_place(-1001) && !has_a_place(-1));
    }

    #[test]
    fn one_request_at_a_time_whatever_name_the_setting_has() {
        // G-41
        const NAME: &str = "max.in.flight.requests.per.connection";
        for asked in [None, Some((NAME, "5")), Some(("max.in.flight", "3"))] {
            let mut config = ClientConfig::new();
            if let Some((name, value)) = asked {
                config.set(name, value);
            }
            one_at_a_time(&mut config);
            assert_eq!((config.get(NAME), config.get("max.in.flight")), (Some("1"), None));
        }
        let mut config = ClientConfig::new();
        config.set("max.in.flight", "10");
        one_at_a_time(&mut config);
        assert_eq!(config.get("max.in.flight"), Some("10"), "the client refuses it, and says why");
    }
}
