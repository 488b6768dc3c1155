//! Settling messages: together if that works, alone if it does not.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_core::error::Error;
use semel_core::inbox::{
    Applied, Arrival, Aside, Batch, Failure, Ids, Kept, Nameless, Offset, Received, SetAside,
};
use semel_core::{Backoff, Nonce};

use super::{Delivery, Engine, Position, Receipt, Tally};

/// A message on its way through the engine.
pub(super) struct Item {
    receipt: Option<Receipt>,
    position: Option<Position>,
    what: Result<Arrival, Box<Nameless>>,
}

impl Item {
    pub(super) fn of(delivery: Delivery, ids: &Ids) -> Self {
        let Delivery { receipt, message, position } = delivery;
        Self { receipt: Some(receipt), position, what: Arrival::read(message, ids) }
    }

    pub(super) fn letter(arrival: Arrival) -> Self {
        Self { receipt: None, position: None, what: Ok(arrival) }
    }
}

/// What became of some messages.
#[derive(Default)]
pub(super) struct Settled {
    /// To acknowledge.
    pub(super) settled: Vec<Receipt>,
    /// To give back.
    pub(super) open: Vec<Receipt>,
    /// Positions to read again, because the database refused one of them.
    pub(super) fenced: Vec<Offset>,
}

/// What became of one step.
enum Step {
    Settled,
    Divided([Range<usize>; 3]),
    Fenced(Vec<Offset>),
    GivenUp,
}

impl Engine {
    /// Settles messages in their order. Whatever it returns as settled is committed.
    pub(super) async fn settle(&self, items: Vec<Item>) -> Result<Settled, Error> {
        let mut done = Settled::default();
        let mut waiting: VecDeque<Range<usize>> = runs(&items).into();
        while let Some(range) = waiting.pop_front() {
            let receipts = |range: Range<usize>| items[range].iter().filter_map(|item| item.receipt);
            match self.step(&items[range.clone()]).await? {
                Step::Settled => done.settled.extend(receipts(range)),
                Step::Divided(parts) => {
                    for part in parts.into_iter().rev().filter(|part| !part.is_empty()) {
                        waiting.push_front(range.start + part.start..range.start + part.end);
                    }
                }
                Step::Fenced(refused) => {
                    Tally::add(&self.tally.fenced);
                    // All that is not settled must be read again, also of partitions nobody refused: their next
                    // messages would pass over it.
                    done.fenced = match semel_core::mutant::on("fence-drops-the-rest") {
                        true => refused,
                        false => offsets(&items[range.start..]),
                    };
                    done.open.extend(receipts(range.start..items.len()));
                    return Ok(done);
                }
                Step::GivenUp => {
                    done.open.extend(receipts(range.start..items.len()));
                    return Ok(done);
                }
            }
        }
        Ok(done)
    }

    /// One transaction, repeated until the database has answered.
    async fn step(&self, items: &[Item]) -> Result<Step, Error> {
        let mut backoff = Backoff::new(Nonce::random());
        loop {
            let error = match self.attempt(items).await {
                Ok(step) => return Ok(step),
                // Also one whose COMMIT may have gone through: the ledger tells, by another attempt.
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            if self.stopping.load(Ordering::Relaxed) {
                return Ok(Step::GivenUp);
            }
            tracing::warn!(%error, "messages cannot be applied now; trying again");
            self.runtime.sleep(backoff.next_pause()).await;
        }
    }

    async fn attempt(&self, items: &[Item]) -> Result<Step, Error> {
        let offsets = offsets(items);
        let arrivals: Vec<Arrival> =
            items.iter().filter_map(|item| item.what.as_ref().ok().cloned()).collect();
        if arrivals.len() < items.len() {
            return self.keep_nameless(items, offsets).await;
        }
        let batch = Batch { group: self.options.group.clone(), arrivals, offsets };
        match self.apply.apply(&batch).await? {
            Applied::Committed(received) => {
                batch.arrivals.iter().zip(received).for_each(|(arrival, one)| self.count(arrival, one));
                Ok(Step::Settled)
            }
            Applied::Failed { at, .. } if batch.arrivals.len() > 1 => {
                Tally::add(&self.tally.divided);
                Ok(Step::Divided(divide(batch.arrivals.len(), at)))
            }
            Applied::Failed { failure, .. } => {
                self.keep_failed(batch.arrivals.iter().map(|arrival| (arrival, &failure)), &batch.offsets)
                    .await
            }
            Applied::Each(each) => {
                let failed = batch.arrivals.iter().zip(&each);
                let failed = failed.filter_map(|(arrival, one)| Some((arrival, one.as_ref().err()?)));
                for (arrival, one) in batch.arrivals.iter().zip(&each) {
                    one.iter().for_each(|received| self.count(arrival, *received));
                }
                self.keep_failed(failed, &batch.offsets).await
            }
            Applied::Fenced => Ok(Step::Fenced(batch.offsets)),
        }
    }

    fn count(&self, arrival: &Arrival, received: Received) {
        if matches!(received, Received::Stale | Received::Conflict)
            && let Some((_, reason)) = received.aside(arrival)
        {
            let (source, id) = (&arrival.message.source, arrival.id.as_str());
            tracing::warn!(source, id, reason, "a message is a dead letter");
        }
        Tally::add(match received {
            Received::New => &self.tally.applied,
            Received::Duplicate => &self.tally.duplicates,
            Received::Conflict => &self.tally.conflicts,
            Received::Stale => &self.tally.stale,
            Received::Behind => &self.tally.behind,
        });
    }

    /// Sets aside what failed alone: to be tried again, or for good.
    async fn keep_failed<'a>(
        &self,
        failed: impl Iterator<Item = (&'a Arrival, &'a Failure)>,
        offsets: &[Offset],
    ) -> Result<Step, Error> {
        let letters: Vec<SetAside<'_>> =
            failed.map(|(arrival, failure)| self.letter(arrival, failure)).collect();
        let step = self.keep(&letters, offsets).await?;
        if matches!(step, Step::Settled) {
            for letter in &letters {
                let reason = &letter.reason;
                let id = letter.id.map_or("", |id| id.as_str());
                tracing::warn!(id, tries = letter.tries, kind = ?letter.aside, reason, "a message is set aside");
                Tally::add(match letter.aside {
                    Aside::Later => &self.tally.later,
                    _ => &self.tally.dead,
                });
            }
        }
        Ok(step)
    }

    fn letter<'a>(&self, arrival: &'a Arrival, failure: &Failure) -> SetAside<'a> {
        let tries = arrival.tries.saturating_add(1);
        let aside = match failure {
            Failure::Later(_) if tries < self.options.tries_max => Aside::Later,
            Failure::Later(_) | Failure::Never(_) => Aside::Dead,
        };
        SetAside {
            message: &arrival.message,
            id: Some(&arrival.id),
            letter: arrival.letter,
            aside,
            reason: failure.reason().to_owned(),
            tries,
            again_in: self.pause(tries),
        }
    }

    /// Doubles with each try, with jitter, so that many do not come back at once.
    fn pause(&self, tries: u32) -> Duration {
        let options = &self.options;
        let ceiling =
            options.pause.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(options.pause_max);
        let random = u32::from_le_bytes(Nonce::random().as_bytes()[..4].try_into().unwrap_or_default());
        ceiling / 2 + (ceiling / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    async fn keep_nameless(&self, items: &[Item], offsets: Vec<Offset>) -> Result<Step, Error> {
        let nameless = items.iter().filter_map(|item| item.what.as_ref().err());
        let letters: Vec<SetAside<'_>> = nameless
            .map(|nameless| SetAside {
                message: &nameless.message,
                id: None,
                letter: None,
                aside: Aside::Dead,
                reason: nameless.why.to_string(),
                tries: 0,
                again_in: Duration::ZERO,
            })
            .collect();
        let step = self.keep(&letters, &offsets).await?;
        if matches!(step, Step::Settled) {
            for letter in &letters {
                let (place, reason) = (&letter.message.place, &letter.reason);
                tracing::warn!(place, reason, "a message without an id is a dead letter");
                Tally::add(&self.tally.dead);
            }
        }
        Ok(step)
    }

    async fn keep(&self, letters: &[SetAside<'_>], offsets: &[Offset]) -> Result<Step, Error> {
        if letters.is_empty() && offsets.is_empty() {
            return Ok(Step::Settled);
        }
        Ok(match self.inbox.set_aside(&self.options.group, letters, offsets).await? {
            Kept::Kept => Step::Settled,
            Kept::Fenced => Step::Fenced(offsets.to_vec()),
        })
    }
}

/// Runs of messages with and without an id: a message without one must not overtake an earlier one of its
/// key, nor be overtaken.
fn runs(items: &[Item]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if items[run.start].what.is_ok() == item.what.is_ok() => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// Three parts, some of them empty: around the one that failed, or in halves.
fn divide(count: usize, at: Option<usize>) -> [Range<usize>; 3] {
    match at.filter(|at| *at < count) {
        Some(at) => [0..at, at..at + 1, at + 1..count],
        None => [0..count / 2, count / 2..count, count..count],
    }
}

/// How far these messages come, in each partition.
fn offsets(items: &[Item]) -> Vec<Offset> {
    let mut offsets: BTreeMap<(&str, i32), Offset> = BTreeMap::new();
    for position in items.iter().filter_map(|item| item.position.as_ref()) {
        let Position { topic, partition, generation, offset } = position;
        let entry = offsets.entry((topic, *partition)).or_insert_with(|| Offset {
            topic: topic.clone(),
            partition: *partition,
            generation: *generation,
            first: *offset,
            next: *offset + 1,
        });
        // A batch can hold messages of two assignments; the older ones must not pass for the newer.
        entry.generation = entry.generation.min(*generation);
        entry.first = entry.first.min(*offset);
        entry.next = entry.next.max(*offset + 1);
    }
    offsets.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_taken_apart_around_the_one_that_failed_or_in_halves() {
        assert_eq!(divide(5, Some(2)), [0..2, 2..3, 3..5]);
        assert_eq!(divide(2, Some(0)), [0..0, 0..1, 1..2]);
        assert_eq!(divide(5, None), [0..2, 2..5, 5..5]);
        assert_eq!(divide(2, None), [0..1, 1..2, 2..2]);
        assert_eq!(divide(2, Some(7)), [0..1, 1..2, 2..2], "nobody can tell which");
    }
}
