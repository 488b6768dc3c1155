//! The partitions that are ours, as the database sees them.
//!
//! It asks the database and never Kafka; what is to be read from where is decided in `reader`. That a partition was taken here says
//! nothing for long: whoever takes it later has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::error::{Error, Kind};
use semel_core::inbox::{self, Assignment, Inbox, Kept};
use semel_core::{Backoff, Nonce};
use tokio::runtime::Handle;

use super::reader::Deliveries;
use super::reading::Reading;
use super::unchecked::{From, How, Unchecked, Waiting};
use super::{Options, Start};
use crate::consumer::Position;

/// A partition under one assignment.
pub(super) type Taken = (String, i32, u64);

/// The partitions that are ours, and under which generation.
pub(super) struct Assigned {
    inbox: Arc<dyn Inbox>,
    group: String,
    start: Start,
    readings: Mutex<HashMap<(String, i32), Reading>>,
    /// Taken, and not known to be where the database goes on.
    unchecked: Mutex<Waiting>,
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
            readings: Mutex::default(),
            unchecked: Mutex::default(),
            refusal: Mutex::default(),
            home: Handle::current(),
        }
    }

    pub(super) fn is_current(&self, position: Option<&Position>) -> bool {
        let Some(Position { topic, partition, generation, .. }) = position else { return false };
        self.generation(topic, *partition) == Some(*generation)
    }

    pub(super) fn is_ours(&self, offset: &inbox::Offset) -> bool {
        self.generation(&offset.topic, offset.partition) == Some(offset.generation)
    }

    /// Forgets an assignment, unless there is a newer one.
    pub(super) fn forget(&self, (topic, partition, generation): &Taken) {
        let mut readings = self.lock();
        let place = (topic.clone(), *partition);
        if readings.get(&place).is_some_and(|reading| reading.generation == *generation) {
            readings.remove(&place);
        }
    }

    /// Time does not heal it: whoever consumes must hear of it, and end.
    pub(super) fn refuse(&self, error: Error) {
        tracing::error!(%error, "a partition is refused");
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn generation(&self, topic: &str, partition: i32) -> Option<u64> {
        self.lock().get(&(topic.to_owned(), partition)).map(|reading| reading.generation)
    }

    /// Takes a partition in the database. Nothing of it is delivered until `Thread::look` has seen where it is to go on.
    ///
    /// Asks until the database answers or nobody listens any more: without its word nothing may be read.
    pub(super) fn take(
        &self,
        topic: &str,
        partition: i32,
        how: How,
        deliveries: &Deliveries,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::new(Nonce::random());
        let Assignment { generation, next } = loop {
            match self.home.block_on(self.inbox.assign(&self.group, topic, partition)) {
                Ok(assigned) => break assigned,
                Err(error) if error.is_retryable() && !deliveries.is_closed() => {
                    tracing::warn!(%error, topic, partition, "the database does not say where to go on");
                    std::thread::sleep(backoff.next_pause());
                }
                Err(error) => return Err(error),
            }
        };
        let from = match (next, self.start) {
            (Some(next), _) => From::Next(next),
            (None, Start::Beginning) => From::Beginning,
            (None, Start::End) => From::End,
        };
        self.unchecked().add(Unchecked::new((topic.to_owned(), partition, generation), from, how));
        Ok(())
    }

    /// Says in the database that a partition of which nothing is read yet goes on here. Where a new group begins is written down
    /// at once: what lies behind it must be read, also if this reader ends before it has applied anything, and if it is gone by
    /// then, somebody must hear of it.
    pub(super) fn write_down(&self, (topic, partition, generation): &Taken, at: i64) -> Result<Kept, Error> {
        let (topic, partition, generation) = (topic.clone(), *partition, *generation);
        let begin = inbox::Offset { topic, partition, generation, first: at, next: at };
        self.home.block_on(self.inbox.set_aside(&self.group, &[], &[begin]))
    }

    /// Why a partition is not read beyond its end. Kafka would begin at its beginning, the database would refuse what is
    /// read there, and once there were as many messages as before, the rest of them would be passed over.
    pub(super) fn ends_early(
        &self,
        (topic, partition, _): &Taken,
        next: i64,
        (first, end): (i64, i64),
    ) -> Error {
        let group = &self.group;
        let text = format!(
            "the group {group} goes on at offset {next} of partition {partition} of the Kafka topic {topic}, and what can be read of it \
             ends at {end}: the topic was deleted and made anew, or has lost its end, or a transaction is open there, or this is \
             another cluster. Reading on would pass over messages, so nothing is read. Check first that this is the right cluster. Then `semel inbox rewind --group \
             {group} --topic {topic} --partition {partition} --to OFFSET` says where the group reads on (its first is {first}: \
             everything there is). Whatever it reads then that its ledger has forgotten, or never knew, is applied. Start every \
             consumer of the group again after it"
        );
        Error::new(Kind::WentBack, text)
    }

    /// Why a partition is not read that begins behind the place where the group goes on.
    pub(super) fn begins_late(&self, (topic, partition, _): &Taken, next: i64, first: i64) -> Error {
        let group = &self.group;
        let text = format!(
            "the group {group} goes on at offset {next} of partition {partition} of the Kafka topic {topic}, and the first one still \
             there is {first}: what lay between was deleted before it was applied, because it was kept for too short a time, or by \
             somebody's hand. Reading on would pass over it silently, so nothing is read. (Where a transaction ended there is an \
             offset without a message; so it may be that none is missing.) What is missing must be had from elsewhere, if it \
             matters. Then `semel inbox rewind --group {group} --topic {topic} --partition {partition} --to {first}` says that the \
             group goes on with what is there. Start every consumer of the group again after it"
        );
        Error::new(Kind::Damaged, text)
    }

    pub(super) fn unchecked(&self) -> MutexGuard<'_, Waiting> {
        self.unchecked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<(String, i32), Reading>> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
