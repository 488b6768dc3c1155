//! What the lines of a sink have in common: one producer after the other, and what is known of the broker.
//!
//! A line has one batch on its way at a time. What it says of a batch is what the client said, and where a producer
//! ended under it, why.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode as Code;
use semel_core::mutant;

use super::flight::{Flight, Told};
use super::record::{is_of_one_record, verdict};
use super::shared::{End, Loaded, Shared};
use super::topics::Found;
use super::{apart, topics};
use crate::sinks::{Answer, Batch, Line, Parcel, Receipt, Trouble};

/// Longest wait until a batch has landed.
const LAND_MAX: Duration = Duration::from_secs(30);
/// How often a line that found no room in the client's queue looks again, beside being told: room is made a moment after
/// it is said.
const ROOM: Duration = Duration::from_millis(50);

/// The way to a cluster that all lines share.
pub(super) struct Trunk {
    config: ClientConfig,
    land_max: Duration,
    current: Mutex<Option<Arc<Shared>>>,
    known: Mutex<BTreeSet<String>>,
    /// Lines of which a message cannot be taken, and nobody knows which: records go one by one for as long.
    suspects: AtomicUsize,
}

impl Trunk {
    pub(super) fn new(config: ClientConfig) -> Self {
        let (current, known, suspects) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Self { config, land_max: LAND_MAX, current, known, suspects }
    }

    /// The producer to use now. Waits for the last word about the one before, if that has ended.
    async fn shared(self: &Arc<Self>) -> Result<Arc<Shared>, Trouble> {
        loop {
            let mut over = {
                let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                let certain = self.suspects.load(Ordering::Relaxed) > 0;
                let waited_for =
                    |one: &&Arc<Shared>| one.ended().is_none() || !mutant::on("kafka-next-begins-early");
                match current.as_ref().filter(waited_for) {
                    None => return Ok(current.insert(self.start(certain)?).clone()),
                    Some(one) if one.ended().is_none() && one.certain == certain => return Ok(one.clone()),
                    Some(one) => {
                        one.end(End::Replaced);
                        one.over()
                    }
                }
            };
            // An error says that it is gone altogether.
            let _ = over.wait_for(|over| *over).await;
        }
    }

    fn start(self: &Arc<Self>, certain: bool) -> Result<Arc<Shared>, Trouble> {
        let trunk = Arc::downgrade(self);
        Shared::start(&self.config, certain, self.land_max, move || {
            if let Some(trunk) = trunk.upgrade() {
                trunk.current.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        })
    }

    /// Refuses what goes to topics that do not exist.
    async fn look_up(
        &self,
        shared: &Arc<Shared>,
        parcels: &[Parcel],
        receipts: &mut [Receipt],
    ) -> Result<(), String> {
        let unknown = topics::unknown(&self.known(), parcels);
        let mut unusable = Vec::new();
        for topic in unknown {
            let (shared, name) = (shared.clone(), topic.to_owned());
            let found = apart(move || topics::find(shared.client(), &name).map_err(Trouble::Down)).await;
            match found.map_err(|trouble| trouble.to_string())? {
                Found::There => drop(self.known().insert(topic.to_owned())),
                found => unusable.push((topic, found)),
            };
        }
        topics::refuse(&unusable, parcels, receipts);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        let current = self.current.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        current.into_iter().for_each(|one| one.end(End::Replaced));
    }
}

/// One lane's use of it.
pub(super) struct TrunkLine {
    trunk: Arc<Trunk>,
    /// One of its messages cannot be taken, and it is not known which.
    suspect: bool,
}

/// Sees to it that nothing is sent any more for somebody who no longer waits.
struct Waiting<'a> {
    shared: &'a Shared,
    flight: Arc<Flight>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.flight.is_done() && !mutant::on("kafka-abandoned-goes-on") {
            self.shared.end(End::Abandoned);
        }
    }
}

/// Hands a batch over as soon as there is room for some of it.
async fn loaded(shared: &Shared, parcels: &[Parcel], receipts: &mut [Receipt]) -> Result<Loaded, String> {
    let mut first = shared.load(parcels, receipts);
    let mut looks_left = LAND_MAX.as_millis() / ROOM.as_millis();
    while matches!(first, Loaded::Full) {
        let room = shared.room();
        first = shared.load(parcels, receipts);
        if matches!(first, Loaded::Full) && tokio::time::timeout(ROOM, room).await.is_err() {
            looks_left -= 1;
            if looks_left == 0 {
                return Err(format!("the client's queue had no room for {LAND_MAX:?}"));
            }
        }
    }
    Ok(first)
}

impl TrunkLine {
    /// Opens a line, and says so if the client does not take its settings.
    pub(super) async fn open(trunk: Arc<Trunk>) -> Result<Self, Trouble> {
        trunk.shared().await?;
        Ok(Self { trunk, suspect: false })
    }

    async fn publish(&mut self, parcels: &[Parcel]) -> Result<Vec<Receipt>, String> {
        let mut receipts = vec![Receipt::Unsent; parcels.len()];
        let mut looked_up = false;
        loop {
            let shared = self.trunk.shared().await.map_err(|trouble| trouble.to_string())?;
            if !looked_up {
                self.trunk.look_up(&shared, parcels, &mut receipts).await?;
                looked_up = true;
            }
            match loaded(&shared, parcels, &mut receipts).await? {
                Loaded::Away(flight, done) => {
                    let waiting = Waiting { shared: &shared, flight };
                    // It is dropped, not sent, when all is said.
                    let _ = done.await;
                    self.take_in(&shared, &waiting.flight, parcels, &mut receipts);
                    return Ok(receipts);
                }
                Loaded::Ended | Loaded::Full => {}
            }
        }
    }

    /// Writes receipts for what became of a batch.
    fn take_in(&mut self, shared: &Shared, flight: &Flight, parcels: &[Parcel], receipts: &mut [Receipt]) {
        let (told, late) = flight.told();
        if told.iter().any(|told| *told != Told::Answered(Ok(()))) {
            shared.end_if_stopped();
        }
        let end = shared.ended();
        let certain = shared.certain || mutant::on("kafka-refuses-all-of-a-request");
        let limit = self.trunk.land_max;
        let too_late = || format!("Kafka did not take messages within {limit:?}");
        let (mut found, mut lost_with_it) = (false, Vec::new());
        for (index, told) in told.into_iter().enumerate() {
            receipts[index] = match told {
                Told::Answered(Ok(())) => Receipt::Landed,
                // We took it back ourselves, because it was not taken in time.
                Told::Answered(Err(Code::PurgeQueue | Code::PurgeInflight)) | Told::Flying if late => {
                    Receipt::Down(too_late())
                }
                Told::Flying => Receipt::Down("the Kafka client did not say what became of it".into()),
                Told::Answered(Err(code)) if !certain && is_of_one_record(code) => {
                    self.is_suspect(true);
                    Receipt::Unsent
                }
                Told::Answered(Err(Code::PurgeQueue | Code::InvalidDifferentRecord)) => {
                    lost_with_it.push(index);
                    Receipt::Unsent
                }
                Told::Answered(Err(code)) => {
                    found |= is_of_one_record(code);
                    let receipt = verdict(code, &parcels[index], certain);
                    if matches!(receipt, Receipt::Refused(_)) {
                        self.trunk.known().remove(parcels[index].topic.as_str());
                    }
                    receipt
                }
                Told::Kept => continue,
            };
        }
        // The cluster takes nothing from anybody, it seems, and then somebody should know; or only one of us was ill.
        let why = match end {
            Some(End::Fatal(why)) => Some(why),
            Some(End::Late) => Some(too_late()),
            Some(End::Replaced | End::Gap | End::Abandoned) | None => None,
        };
        if let Some(why) = why.filter(|_| !receipts.contains(&Receipt::Landed)) {
            lost_with_it.iter().for_each(|index| receipts[*index] = Receipt::Down(why.clone()));
        }
        let open = |receipt: &Receipt| matches!(receipt, Receipt::Unsent | Receipt::Down(_));
        if self.suspect && shared.certain && (found || !receipts.iter().any(open)) {
            self.is_suspect(false);
        }
    }

    fn is_suspect(&mut self, suspect: bool) {
        if std::mem::replace(&mut self.suspect, suspect) != suspect {
            match suspect {
                true => self.trunk.suspects.fetch_add(1, Ordering::Relaxed),
                false => self.trunk.suspects.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

impl Drop for TrunkLine {
    fn drop(&mut self) {
        self.is_suspect(false);
    }
}

impl Line for TrunkLine {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(async move {
            let receipts = self.publish(batch.parcels).await;
            receipts.unwrap_or_else(|reason| vec![Receipt::Down(reason); batch.parcels.len()])
        })
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use semel_core::outbox::{Entry, Facts, Lane, Term};
    use semel_core::{Message, Topic};

    use super::*;
    use crate::sinks::{Format, Stamp};

    /// The way to a broker that takes nothing, whose topic is known.
    fn trunk(land_max: Duration) -> Arc<Trunk> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", format!("127.0.0.1:{port}"));
        let mut trunk = Trunk::new(config);
        trunk.land_max = land_max;
        trunk.known().insert("orders".into());
        Arc::new(trunk)
    }

    fn parcels(count: u64) -> Vec<Parcel> {
        let facts = Facts { engine: "memory", store_id: [7; 16], lanes: 1 };
        let stamp = Stamp::new(&facts, Term { lane: Lane(0), epoch: 1 }, Format::Plain, "ce_", None);
        let entry = |sequence| {
            let message = Message::new(Topic::parse("orders").unwrap(), "{}").key("k").into();
            Entry { sequence, message, tries: 0, behind: false }
        };
        (1..=count).map(|sequence| stamp.parcel(&entry(sequence))).collect()
    }

    #[tokio::test]
    async fn all_who_wait_for_a_broker_that_takes_nothing_are_told_and_a_new_producer_follows() {
        // G-44
        let trunk = trunk(Duration::from_millis(300));
        let mut one = TrunkLine::open(trunk.clone()).await.unwrap();
        let mut two = TrunkLine::open(trunk).await.unwrap();
        for _ in 0..2 {
            let (first, second) = (parcels(3), parcels(2));
            let (first, second) = tokio::join!(one.publish(&first), two.publish(&second));
            for receipts in [first.unwrap(), second.unwrap()] {
                assert!(receipts.iter().all(|one| matches!(one, Receipt::Down(_))), "{receipts:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_taken_back_and_the_producer_takes_nothing_else() {
        // G-42
        let trunk = trunk(LAND_MAX);
        let shared = trunk.shared().await.unwrap();
        let batch = parcels(3);
        let mut line = TrunkLine::open(trunk.clone()).await.unwrap();
        let mut publishing = Box::pin(line.publish(&batch));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(publishing.as_mut().poll(&mut context).is_pending());
        drop(publishing);
        assert_eq!(shared.ended(), Some(End::Abandoned));
        let mut receipts = vec![Receipt::Unsent; 3];
        assert!(matches!(shared.load(&batch, &mut receipts), Loaded::Ended));
        let next = trunk.shared().await.unwrap();
        assert!(!Arc::ptr_eq(&shared, &next) && next.ended().is_none());
        assert!(*shared.over().borrow(), "it follows the last word about the one before");
    }
}
