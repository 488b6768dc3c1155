//! What was seen of a store, and whether what is found now is behind it.
//!
//! Once found behind it stays so, whatever its numbers become: others, who had seen less, may push them past the old
//! mark. What was forgotten stays forgotten. Only an operator's new epoch opens the store.

use semel_core::mutant;
use semel_core::store::Mark;

use super::witness::Witness;

/// What was seen of the store, by this process or by its witnesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) seen: Mark,
    pub(super) behind: Option<Behind>,
}

/// The store was found behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    /// As far as either the lost state or the one in its place was seen to come. A later epoch than this opens.
    pub(super) from: Mark,
    /// Another database is in its place.
    pub(super) foreign: bool,
}

impl Standing {
    /// From what the witnesses say of a store that is opened.
    pub(super) fn at_open(store_id: [u8; 16], found: Mark, witnesses: &[Witness]) -> Self {
        let mut standing = Self { seen: found, behind: None };
        for Witness { store_id: witnessed, mark, behind } in witnesses {
            if *witnessed != store_id {
                // Another database stood here, and nobody said that this one may take its place.
                standing.fall_behind(*mark, true);
            } else if *behind && mark.epoch >= found.epoch {
                standing.fall_behind(*mark, false);
            } else {
                standing.seen = standing.seen.max(*mark);
            }
        }
        standing.judge(standing.seen, found);
        standing
    }

    /// Looks at the mark that was found, knowing what had been seen before it was looked for: what others do in between
    /// must not pass for a step back. Where the store was before, if it is behind.
    pub(super) fn judge(&mut self, seen_before: Mark, found: Mark) -> Option<Behind> {
        if found.is_behind(seen_before) {
            self.fall_behind(seen_before, false);
        } else if self.behind.is_some_and(|behind| found.epoch > behind.from.epoch)
            || (mutant::on("sqlite-behind-forgotten")
                && self.behind.is_some_and(|behind| found >= behind.from))
        {
            self.behind = None;
            self.seen = self.seen.max(found);
        }
        self.behind
    }

    /// The store was seen before with this mark, and is not what it was.
    pub(super) fn fall_behind(&mut self, from: Mark, foreign: bool) {
        let further = |to: Mark| Mark { epoch: from.epoch.max(to.epoch), token: from.token.max(to.token) };
        let known = self.behind;
        self.behind = Some(Behind {
            from: further(known.map_or(if foreign { self.seen } else { from }, |known| known.from)),
            foreign: foreign || known.is_some_and(|known| known.foreign),
        });
    }

    /// A mark was committed to the database, or found in it and not behind. Never called for what was not.
    pub(super) fn has_come_to(&mut self, mark: Mark) {
        if self.behind.is_none_or(|behind| mark.epoch > behind.from.epoch) {
            *self = Self { seen: self.seen.max(mark), behind: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Token;

    use super::*;

    fn at(epoch: u64, token: u64) -> Mark {
        Mark { epoch, token: Token(token) }
    }

    fn fresh(seen: Mark) -> Standing {
        Standing { seen, behind: None }
    }

    // G-13
    #[test]
    fn what_was_found_behind_opens_with_a_new_epoch_only() {
        let mut standing = fresh(at(1, 1000));
        assert!(standing.judge(at(1, 1000), at(1, 900)).is_some_and(|behind| behind.from == at(1, 1000)));
        assert!(standing.judge(at(1, 1000), at(1, 1001)).is_some(), "others went on");
        standing.has_come_to(at(1, 1002));
        assert!(standing.judge(at(1, 1000), at(1, 1002)).is_some());
        assert!(standing.judge(at(1, 1000), at(2, 950)).is_none(), "acknowledged elsewhere");
        assert_eq!(standing, fresh(at(2, 950)));
        standing.judge(at(2, 950), at(1, 2000));
        standing.has_come_to(at(3, 2000));
        assert_eq!(standing, fresh(at(3, 2000)), "acknowledged here");
    }

    // G-13
    #[test]
    fn a_look_from_before_an_acknowledgement_closes_nothing_for_long() {
        let mut standing = fresh(at(1, 1000));
        standing.judge(at(1, 1000), at(1, 900));
        standing.has_come_to(at(2, 5000));
        // A reader that had asked before, and looked before, speaks only now.
        assert!(standing.judge(at(1, 1000), at(1, 900)).is_some());
        assert!(standing.judge(at(2, 5000), at(2, 5000)).is_none());
    }

    // G-13
    #[test]
    fn a_witness_of_another_store_or_of_one_behind_closes_until_a_later_epoch() {
        let witness = |id, mark, behind| Witness { store_id: [id; 16], mark, behind };
        let open = |found, witnesses: &[Witness]| Standing::at_open([7; 16], found, witnesses);
        assert_eq!(open(at(1, 5), &[]), fresh(at(1, 5)));
        assert_eq!(open(at(1, 5), &[witness(7, at(1, 4), false)]), fresh(at(1, 5)));
        let restored = open(at(1, 5), &[witness(7, at(1, 6), false)]);
        assert_eq!(restored.behind, Some(Behind { from: at(1, 6), foreign: false }));
        let kept_on = open(at(1, 9), &[witness(7, at(1, 6), true)]);
        assert_eq!(kept_on.behind, Some(Behind { from: at(1, 6), foreign: false }));
        assert_eq!(open(at(2, 9), &[witness(7, at(1, 6), true)]), fresh(at(2, 9)));
        for mark in [at(1, 4), at(1, 60), at(3, 2)] {
            let other = open(at(2, 5), &[witness(7, at(2, 5), false), witness(8, mark, false)]);
            let from = at(mark.epoch.max(2), mark.token.0.max(5));
            assert_eq!(other.behind, Some(Behind { from, foreign: true }));
        }
    }
}
