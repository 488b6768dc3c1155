//! From which number on a lane is read.
//!
//! Reading from the beginning is always right, because the rows that are there are what waits. It is slow while
//! somebody's old snapshot keeps the server from clearing away deleted rows: they are walked through at every
//! look. So a lane is read from a floor, and the floor must never pass a number whose transaction is still open.
//!
//! A number is raised to in three steps. It was read, and everything read with it is settled. Some seconds later,
//! whoever drew a lower number has become a transaction that the server lists; the newest on the list is
//! remembered. Once all up to that one have ended, a look that finds nothing at or below the number proves that
//! nothing will be there any more. The seconds are generous, and no proof that no writer was paused for longer
//! between drawing its number and writing its row; so now and then the lane is read from the beginning.

use std::collections::VecDeque;
use std::time::Duration;

use semel_core::mutant;
use tokio::time::Instant;

/// A writer that has drawn a number is listed as a transaction by then.
const MARGIN: Duration = Duration::from_secs(2);
/// Numbers to raise to are remembered this often.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// Most numbers remembered; a transaction that stays open keeps them from being used.
const MARKS_MAX: usize = 8;
/// How often a lane is read from the beginning.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The transactions that had written something and not ended, at one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writers {
    pub(super) at: Instant,
    /// The oldest and the newest of them.
    pub(super) open: Option<(u64, u64)>,
}

pub(super) struct Floor {
    floor: u64,
    marks: VecDeque<Mark>,
    /// Nobody can write at or below this any more.
    clear: u64,
    swept: Instant,
}

struct Mark {
    to: u64,
    since: Instant,
    /// Whoever may have drawn a lower number is up to here.
    newest: Option<u64>,
}

impl Floor {
    pub(super) fn new(now: Instant) -> Self {
        Self { floor: 0, marks: VecDeque::new(), clear: 0, swept: now }
    }

    /// Where to begin the next look.
    pub(super) fn begin(&self, now: Instant) -> u64 {
        if now.duration_since(self.swept) >= SWEEP_EVERY { 0 } else { self.floor }
    }

    /// Whether it would help to know who writes.
    pub(super) fn wants_writers(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Everything that was visible up to this number is settled.
    pub(super) fn settled(&mut self, to: u64, now: Instant) {
        let fresh =
            self.marks.back().is_none_or(|mark| now.duration_since(mark.since) >= MARK_EVERY && to > mark.to);
        if fresh && to > self.floor && self.marks.len() < MARKS_MAX {
            self.marks.push_back(Mark { to, since: now, newest: None });
        }
    }

    pub(super) fn heard(&mut self, writers: Writers) {
        let due = |mark: &&mut Mark| mark.newest.is_none() && writers.at >= mark.since + MARGIN;
        for mark in self.marks.iter_mut().filter(due) {
            mark.newest = Some(writers.open.map_or(0, |(_, newest)| newest));
        }
        let hurries = mutant::on("my-outbox-floor-hurries");
        let ended = |newest: u64| hurries || writers.open.is_none_or(|(oldest, _)| oldest > newest);
        while self.marks.front().and_then(|mark| mark.newest).is_some_and(ended) {
            let mark = self.marks.pop_front();
            self.clear = mark.map_or(self.clear, |mark| mark.to.max(self.clear));
        }
    }

    /// A look that began at `from`, after everything that was heard, found this first.
    pub(super) fn looked(&mut self, from: u64, first: Option<u64>, now: Instant) {
        if from == 0 && self.floor > 0 {
            self.swept = now;
            if first.is_some_and(|first| first <= self.floor) {
                // Somebody was paused for longer than the margin. There may be more than one look has room for.
                (self.floor, self.clear) = (0, 0);
                self.marks.clear();
                return;
            }
        }
        if self.clear > self.floor && first.is_none_or(|first| first > self.clear) {
            self.floor = self.clear;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_floor_never_passes_a_number_whose_transaction_is_open() {
        // G-40
        let start = Instant::now();
        let at = |n| start + second(n);
        let heard = |n, open| Writers { at: at(n), open };
        let mut floor = Floor::new(start);
        floor.settled(100, at(0));
        floor.heard(heard(1, None));
        floor.looked(0, None, at(1));
        assert_eq!(floor.begin(at(1)), 0, "a writer may not be listed yet");
        floor.heard(heard(3, Some((7, 9))));
        floor.looked(0, None, at(3));
        assert_eq!(floor.begin(at(3)), 0, "7 and 9 may have drawn lower numbers");
        floor.heard(heard(4, Some((9, 30))));
        floor.looked(0, None, at(4));
        assert_eq!(floor.begin(at(4)), 0, "9 still may");
        floor.heard(heard(5, Some((30, 30))));
        floor.looked(0, Some(50), at(5));
        assert_eq!(floor.begin(at(5)), 0, "9 has committed 50");
        floor.looked(0, Some(120), at(6));
        assert_eq!(floor.begin(at(6)), 100, "50 is settled, and 30 came later");
        floor.looked(100, Some(120), at(7));
        assert_eq!(floor.begin(at(7)), 100);
    }

    #[test]
    fn a_lane_is_read_from_the_beginning_now_and_then() {
        // G-40
        let start = Instant::now();
        let mut floor = Floor::new(start);
        floor.settled(100, start);
        floor.heard(Writers { at: start + second(3), open: None });
        floor.looked(0, None, start + second(3));
        assert_eq!(floor.begin(start + second(59)), 100);
        assert_eq!(floor.begin(start + second(60)), 0);
        floor.looked(0, Some(200), start + second(60));
        assert_eq!(floor.begin(start + second(61)), 100, "nothing was missed");
        floor.looked(0, Some(40), start + second(121));
        assert_eq!(floor.begin(start + second(122)), 0, "something was, and there may be more");
    }
}
