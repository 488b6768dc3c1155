//! A partition that is read, and how far.
//!
//! How far is said by what was delivered, and behind that by librdkafka: it passes over the marks that end transactions and
//! over what was aborted without giving anything out. Nothing here asks Kafka or the database.

use std::time::{Duration, Instant};

use semel_core::mutant;

/// A partition of which nothing came for so long is looked at: the client may have stopped reading it without a word.
const QUIET: Duration = Duration::from_secs(15);
/// The pause before the next look, if Kafka gave no answer.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// What a look at the partition says of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It can be read on.
    There,
    /// It begins behind the place where it is to be read on: what was between is gone.
    Gone { next: i64, first: i64 },
    /// It must be taken anew: it ends before that place, or the client may have stopped reading it.
    Doubtful,
}

/// One of them, under one assignment.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) generation: u64,
    /// All that lies before it was delivered or is no message.
    next: i64,
    /// Where the client stood under an assignment before this one. It may say so for a moment longer, and whoever believed
    /// that would pass over messages.
    stale: Option<i64>,
    /// `next` a while ago.
    seen: i64,
    /// `None` once there is nothing more to be seen.
    look_at: Option<Instant>,
    /// Kafka had nothing at some place, and that may have been here.
    doubted: bool,
}

impl Reading {
    pub(super) fn new(generation: u64, next: i64, stale: Option<i64>) -> Self {
        let look_at = Some(Instant::now() + QUIET);
        Self { generation, next, stale, seen: next, look_at, doubted: false }
    }

    pub(super) fn delivered(&mut self, offset: i64) {
        (self.next, self.stale) = (offset + 1, None);
    }

    /// Asked now and then. Says how far the partition was read behind the last message, once for each place, and not while
    /// messages come: the next of them will say more.
    pub(super) fn passed(&mut self, position: Option<i64>, now: Instant) -> Option<i64> {
        if position != self.stale {
            self.stale = None;
        }
        let place = self.place(position);
        let come = self.next != self.seen;
        if !come && (place == self.next || mutant::on("kafka-source-marks-unpassed")) {
            return None;
        }
        if !come {
            self.next = place;
        }
        self.seen = self.next;
        if !self.doubted {
            self.look_at = Some(now + QUIET);
        }
        (!come).then_some(place)
    }

    /// Where it is read on.
    fn place(&self, position: Option<i64>) -> i64 {
        let believed =
            position.filter(|_| self.stale.is_none() || mutant::on("kafka-source-stale-position-believed"));
        believed.map_or(self.next, |position| position.max(self.next))
    }

    pub(super) fn doubt(&mut self) {
        (self.doubted, self.look_at) = (true, Some(Instant::now()));
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_seen = self.doubted || !mutant::on("kafka-source-quiet-unseen");
        is_seen && self.look_at.is_some_and(|at| at <= now)
    }

    /// Compares where it begins and ends, if Kafka said so, with where it is read on.
    pub(super) fn compare(&mut self, position: Option<i64>, ends: Option<(i64, i64)>) -> Found {
        let Some((first, end)) = ends else {
            self.look_at = Some(Instant::now() + LOOK_PAUSE);
            return Found::There;
        };
        let next = self.place(position);
        if next < first && !mutant::on("kafka-source-beginning-unchecked") {
            self.look_at = None;
            return Found::Gone { next, first };
        }
        if next > end || self.doubted {
            return Found::Doubtful;
        }
        self.look_at = Some(Instant::now() + QUIET);
        Found::There
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_behind_the_last_message_is_said_once_when_no_more_come() {
        // G-47
        let (mut one, now) = (Reading::new(1, 3, None), Instant::now());
        assert_eq!(one.passed(None, now), None, "nothing is read yet");
        one.delivered(4);
        assert_eq!(one.passed(Some(6), now), None, "messages come");
        assert_eq!(one.passed(Some(6), now), Some(6));
        assert_eq!(one.passed(Some(6), now), None);
        assert_eq!(one.passed(Some(8), now), Some(8), "a transaction was aborted");
    }

    #[test]
    fn where_the_client_stood_before_this_assignment_is_not_believed() {
        // G-47
        let (mut one, now) = (Reading::new(2, 5, Some(90)), Instant::now());
        for _ in 0..3 {
            assert_eq!(one.passed(Some(90), now), None, "from 5 to 90 there are messages");
        }
        assert_eq!(one.compare(Some(90), Some((6, 100))), Found::Gone { next: 5, first: 6 });
        assert_eq!(one.passed(None, now), None);
        assert_eq!(one.passed(Some(6), now), Some(6));
    }

    #[test]
    fn a_quiet_partition_that_was_overtaken_or_has_lost_its_end_is_found_without_a_word_of_the_client() {
        // G-44, G-47
        let mut one = Reading::new(1, 5, None);
        assert!(!one.is_due(Instant::now()), "it has just begun");
        assert!(one.is_due(Instant::now() + QUIET));
        assert_eq!(one.compare(None, None), Found::There, "no answer says nothing");
        assert_eq!(one.compare(None, Some((0, 5))), Found::There);
        assert_eq!(one.compare(None, Some((5, 9))), Found::There);
        assert_eq!(one.compare(Some(6), Some((6, 6))), Found::There, "only a mark went");
        assert_eq!(one.compare(None, Some((0, 4))), Found::Doubtful);
        one.doubt();
        one.delivered(4);
        assert_eq!(one.passed(None, Instant::now()), None);
        assert!(one.is_due(Instant::now()), "also straight after a message");
        assert_eq!(one.compare(None, Some((0, 9))), Found::Doubtful, "nobody reads it, perhaps");
        assert_eq!(one.compare(None, Some((6, 9))), Found::Gone { next: 5, first: 6 });
        assert!(!one.is_due(Instant::now() + 2 * QUIET), "it is said once");
    }
}
