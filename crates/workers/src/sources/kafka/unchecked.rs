//! Partitions that were taken in the database, and of which nothing is read yet.
//!
//! The database says where a group goes on. Whether the partition reaches that far only Kafka can say, and it may take its time:
//! a partition without a leader does not answer at all. So it is asked between polls, while the other partitions are read.
//! Nothing is decided here without an answer.

use std::time::{Duration, Instant};

use semel_core::mutant;

use super::assigned::Taken;

/// How long a partition must be too short before that is believed: a broker that has just begun to lead it may not
/// know of the last messages yet.
const SHORT_FOR: Duration = Duration::from_secs(30);
/// And so many looks must have found it so.
const SHORT_LOOKS: u32 = 5;
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// Where to begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// Where the database goes on, if the partition reaches that far.
    Next(i64),
    /// With the oldest message there is now.
    Beginning,
    /// With the next one to be written.
    End,
    /// Nowhere: somebody else took it since.
    Lost,
}

/// What librdkafka is told then.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// To read a partition it was not given yet.
    Assign,
    /// To go on at another place in one that it reads.
    Seek,
}

/// What a look saw.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It may be read from here on.
    Is(i64),
    /// No answer, or none that can be believed yet.
    Nothing,
    /// It ends before the place where the database goes on, and stays so. What is there begins at `first`.
    Short { next: i64, first: i64, end: i64 },
    /// It begins behind the place where the database goes on: what was between is gone.
    Gone { next: i64, first: i64 },
}

/// One of them.
#[derive(Debug)]
pub(super) struct Unchecked {
    pub(super) taken: Taken,
    pub(super) from: From,
    pub(super) how: How,
    /// Since when it has been too short, and how many looks said so.
    short: Option<(Instant, u32)>,
    look_at: Instant,
}

impl Unchecked {
    pub(super) fn new(taken: Taken, from: From, how: How) -> Self {
        Self { taken, from, how, short: None, look_at: Instant::now() }
    }

    /// Compares where it begins and ends with where the database goes on.
    pub(super) fn compare(&mut self, next: i64, (first, end): (i64, i64)) -> Seen {
        // Compaction and the marks of transactions leave holes behind the beginning, and do not move it. No look is needed
        // to believe it: a partition never says that it begins later than it does.
        if next < first && !mutant::on("kafka-source-beginning-unchecked") {
            return Seen::Gone { next, first };
        }
        self.compare_at(next, (first, end), Instant::now())
    }

    fn compare_at(&mut self, next: i64, (first, end): (i64, i64), now: Instant) -> Seen {
        if next <= end || mutant::on("kafka-source-end-unchecked") {
            return Seen::Is(next);
        }
        let (since, looks) = self.short.map_or((now, 1), |(since, looks)| (since, looks + 1));
        if looks == 1 {
            let (topic, partition, _) = &self.taken;
            tracing::warn!(
                topic,
                partition,
                next,
                end,
                "a partition ends before it goes on; it is looked at again"
            );
        }
        self.short = Some((since, looks));
        // A rewind to before it would be refused.
        let first = if mutant::on("kafka-source-short-from-zero") { 0 } else { first };
        match looks >= SHORT_LOOKS && now.duration_since(since) >= SHORT_FOR {
            true => Seen::Short { next, first, end },
            false => Seen::Nothing,
        }
    }
}

/// All of them, each partition once.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Unchecked>);

impl Waiting {
    pub(super) fn add(&mut self, unchecked: Unchecked) {
        let (topic, partition, _) = unchecked.taken.clone();
        self.remove(&(topic, partition));
        self.0.push(unchecked);
    }

    pub(super) fn remove(&mut self, (topic, partition): &(String, i32)) {
        self.0.retain(|one| (&one.taken.0, &one.taken.1) != (topic, partition));
    }

    pub(super) fn has(&self, topic: &str, partition: i32) -> bool {
        self.0.iter().any(|one| one.taken.0 == topic && one.taken.1 == partition)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out the one that has waited longest for a look, if it is time for one.
    pub(super) fn due(&mut self, now: Instant) -> Option<Unchecked> {
        let first = self.0.iter().enumerate().min_by_key(|(_, one)| one.look_at).map(|(index, _)| index)?;
        (self.0[first].look_at <= now).then(|| self.0.remove(first))
    }

    /// Puts it back.
    pub(super) fn later(&mut self, unchecked: Unchecked) {
        self.add(Unchecked { look_at: Instant::now() + LOOK_PAUSE, ..unchecked });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_too_short_when_many_looks_over_a_long_time_say_so() {
        // G-47
        let mut one = Unchecked::new(("t".into(), 0, 1), From::Next(5), How::Assign);
        let began = Instant::now();
        for seconds in [0, 5, 10, 15, 20, 25] {
            assert_eq!(one.compare_at(5, (0, 2), began + Duration::from_secs(seconds)), Seen::Nothing);
        }
        let (first, end) = (1, 2);
        assert_eq!(
            one.compare_at(5, (first, end), began + SHORT_FOR),
            Seen::Short { next: 5, first, end },
            "what is there by now, not what was"
        );
        assert_eq!(one.compare_at(5, (1, 5), began + SHORT_FOR), Seen::Is(5));
        let mut rare = Unchecked::new(("t".into(), 0, 1), From::Next(5), How::Assign);
        assert_eq!(rare.compare_at(5, (0, 2), began), Seen::Nothing);
        assert_eq!(rare.compare_at(5, (0, 2), began + 2 * SHORT_FOR), Seen::Nothing, "two looks are few");
    }

    #[test]
    fn what_lies_before_the_beginning_is_gone_and_the_beginning_itself_is_not() {
        // G-44, G-47
        let mut one = Unchecked::new(("t".into(), 0, 1), From::Next(5), How::Assign);
        assert_eq!(one.compare(5, (6, 9)), Seen::Gone { next: 5, first: 6 });
        assert_eq!(one.compare(5, (5, 9)), Seen::Is(5));
        assert_eq!(one.compare(5, (5, 5)), Seen::Is(5));
    }

    #[test]
    fn whoever_was_looked_at_comes_after_the_others() {
        let mut waiting = Waiting::default();
        for partition in 0..2 {
            waiting.add(Unchecked::new(("t".into(), partition, 1), From::Next(5), How::Assign));
        }
        let first = waiting.due(Instant::now()).unwrap();
        assert_eq!(first.taken.1, 0);
        waiting.later(first);
        assert_eq!(waiting.due(Instant::now()).unwrap().taken.1, 1);
        assert!(waiting.due(Instant::now()).is_none(), "it is not time");
        waiting.remove(&("t".into(), 0));
        assert!(waiting.due(Instant::now() + LOOK_PAUSE).is_none());
    }
}
