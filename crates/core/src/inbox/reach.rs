//! How far relays have come with a key, and what they left behind by that.
//!
//! The stream's order decides, not the order of deliveries: a message that comes again after a later one of its key
//! was published under another holding is late, and not of a relay that had lost its lane.

use super::Fence;
use crate::mutant;

/// What the ledger keeps of a key in one lane, of messages that were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The newest holding.
    pub epoch: u64,
    /// The largest sequence, under whatever holding.
    pub sequence: u64,
    /// The first place in the stream at which the newest holding was seen. `None`: not known.
    pub since: Option<u64>,
    /// The newest holding before that one; 0 if there was none.
    pub prior: u64,
}

impl Reach {
    /// After the first message of a key.
    pub fn of(fence: Fence, place: Option<u64>) -> Self {
        Self { epoch: fence.epoch, sequence: fence.sequence, since: place, prior: 0 }
    }

    /// Whether a message was published by a relay that had lost its lane, below what its successor had got applied. What lies
    /// before the successor's first message was published while nobody else did. That is known of the newest
    /// holding alone, so it is said of the one before it and of none that is older.
    pub fn is_stale(&self, fence: Fence, place: Option<u64>) -> bool {
        if fence.epoch >= self.epoch || fence.sequence > self.sequence {
            return false;
        }
        let is_earlier = match (place, self.since) {
            _ if mutant::on("inbox-stale-by-delivery") => false,
            (Some(_), Some(_)) if mutant::on("inbox-zombie-passes") => true,
            (Some(place), Some(since)) => place < since && fence.epoch >= self.prior,
            _ => false,
        };
        !is_earlier
    }

    /// Takes in a message that is applied.
    pub fn further(&mut self, fence: Fence, place: Option<u64>) {
        if fence.epoch > self.epoch {
            (self.prior, self.since) = (self.epoch, place);
        } else if fence.epoch == self.epoch {
            // What is not known does not become known by a later message.
            self.since = self.since.and_then(|since| Some(since.min(place?)));
        } else {
            self.prior = self.prior.max(fence.epoch);
        }
        (self.epoch, self.sequence) = (fence.epoch.max(self.epoch), fence.sequence.max(self.sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(epoch: u64, sequence: u64) -> Fence {
        Fence { lane: 0, epoch, sequence }
    }

    #[test]
    fn only_what_lies_behind_the_first_message_of_a_newer_holding_is_stale() {
        // G-42
        let mut reach = Reach::of(fence(1, 4), Some(10));
        reach.further(fence(2, 6), Some(12));
        assert!(!reach.is_stale(fence(1, 5), Some(11)), "published before, delivered again after it");
        assert!(reach.is_stale(fence(1, 5), Some(13)), "published after it");
        assert!(reach.is_stale(fence(1, 5), None), "nobody knows where it lies");
        assert!(!reach.is_stale(fence(1, 7), Some(13)), "the next of the same list");
        assert!(!reach.is_stale(fence(2, 5), Some(13)), "of the same holding");
    }

    #[test]
    fn the_first_message_of_a_holding_may_be_delivered_last() {
        // G-42
        let mut reach = Reach::of(fence(1, 4), Some(10));
        reach.further(fence(2, 7), Some(14));
        reach.further(fence(2, 6), Some(12));
        assert_eq!(reach, Reach { epoch: 2, sequence: 7, since: Some(12), prior: 1 });
        assert!(reach.is_stale(fence(1, 5), Some(13)));
    }

    #[test]
    fn of_a_holding_before_the_last_but_one_nothing_is_known() {
        // G-42: the message at 13 was stale before the third holding began, and stays so.
        let mut reach = Reach::of(fence(1, 4), Some(10));
        reach.further(fence(2, 6), Some(12));
        assert!(reach.is_stale(fence(1, 5), Some(13)));
        reach.further(fence(3, 8), Some(30));
        assert!(reach.is_stale(fence(1, 5), Some(13)));
        assert!(!reach.is_stale(fence(2, 7), Some(29)));
        let mut unknown = Reach { since: None, ..reach };
        unknown.further(fence(3, 9), Some(31));
        assert_eq!(unknown.since, None);
        // A message of a holding in between that nobody had seen.
        let mut reach = Reach::of(fence(1, 4), Some(10));
        reach.further(fence(3, 8), Some(30));
        reach.further(fence(2, 6), Some(20));
        assert!(reach.is_stale(fence(1, 5), Some(25)));
    }
}
