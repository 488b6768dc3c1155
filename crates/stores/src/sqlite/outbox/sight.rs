//! What was seen of an outbox, and whether what is found now is behind that.
//!
//! Once found behind it stays closed, also for whoever is started later, until an operator has rebased. A lane that changes
//! hands has a later epoch, too, and says nothing of that.

use std::sync::PoisonError;

use rusqlite::Connection;
use semel_core::Token;
use semel_core::error::Error;
use semel_core::mutant;
use semel_core::store::Mark;

use super::Shared;
use crate::sqlite::error::Fault;
use crate::sqlite::reader::must_be;
use crate::sqlite::witness::Witness;

/// How far an outbox has come. All of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The last holding of a lane, the last number given.
    pub(super) mark: Mark,
    /// The epoch with which an operator last took it as it is.
    pub(super) rebased: u64,
}

impl Found {
    /// A fault of its own if the file holds another store by now.
    pub(super) fn read(conn: &Connection, store_id: [u8; 16]) -> Result<Self, Fault> {
        let mut statement = conn.prepare_cached(include_str!("sql/mark.sql"))?;
        let number = |row: &rusqlite::Row<'_>, at| row.get::<_, i64>(at).map(i64::unsigned_abs);
        let (mark, rebased, found) = statement.query_row([], |row| {
            let mark = Mark { epoch: number(row, 0)?, token: Token(number(row, 1)?) };
            Ok((mark, number(row, 2)?, row.get(3)?))
        })?;
        must_be(store_id, found)?;
        Ok(Self { mark, rebased })
    }

    /// Whether it is behind what was seen of it.
    fn is_behind(self, seen: Mark) -> bool {
        let fewer = self.mark.token < seen.token && !mutant::on("sqlite-outbox-judged-by-epoch");
        self.mark.epoch < seen.epoch || fewer
    }

    /// Whether nobody has rebased since it was found behind this.
    fn is_closed(self, from: Mark) -> bool {
        let opened =
            if mutant::on("sqlite-outbox-opened-by-a-holding") { self.mark.epoch } else { self.rebased };
        opened <= from.epoch
    }
}

/// What a process has seen of an outbox.
#[derive(Clone, Copy, Default)]
pub(super) struct Sight {
    seen: Mark,
    /// As far as either the lost state or the one in its place was seen to come when it was found behind.
    behind: Option<Mark>,
}

/// As far as either.
fn further(one: Mark, other: Mark) -> Mark {
    Mark { epoch: one.epoch.max(other.epoch), token: one.token.max(other.token) }
}

impl Shared {
    /// Ask before reading the database's own, as of a [store](crate::sqlite::shared::Shared::seen).
    pub(super) fn sight(&self) -> Sight {
        *self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This was found, or committed, and not behind.
    fn has_come_to(&self, found: Found) {
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        sight.seen = further(sight.seen, found.mark);
        sight.behind = sight.behind.filter(|from| found.is_closed(*from));
    }

    /// Refuses an outbox that is behind what had been seen of it before it was looked at. A relay that went on would
    /// settle what now has the numbers of what it read, and pass by what waits again.
    pub(super) fn judge(&self, before: Sight, conn: &Connection) -> Result<Found, Fault> {
        let found = Found::read(conn, self.facts.store_id)?;
        if mutant::on("sqlite-outbox-step-back-unnoticed") {
            return Ok(found);
        }
        if let Some(from) = before.behind.filter(|from| found.is_closed(*from)) {
            return Err(Fault::outbox_closed(from));
        }
        if found.is_behind(before.seen) {
            self.close(further(found.mark, before.seen));
            return Err(Fault::outbox_went_back(found.mark, before.seen));
        }
        self.has_come_to(found);
        Ok(found)
    }

    /// It is behind: until a rebase nobody shall go on with it, here or elsewhere.
    pub(super) fn close(&self, from: Mark) {
        let from = {
            let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
            let from = sight.behind.map_or(from, |known| further(known, from));
            *sight.behind.insert(from)
        };
        if mutant::on("sqlite-outbox-behind-unwritten") {
            return;
        }
        let fresh = Witness { store_id: self.facts.store_id, mark: from, behind: true };
        // That another store was here closes it as well.
        self.witnesses
            .save_if(fresh, |old| old.store_id == fresh.store_id && (!old.behind || exceeds(fresh, old)));
    }

    /// Writes down how far it has come.
    pub(super) fn remember(&self, found: Found) {
        self.has_come_to(found);
        let fresh = Witness { store_id: self.facts.store_id, mark: self.sight().seen, behind: false };
        self.witnesses.save_if(fresh, |old| match old.store_id == fresh.store_id {
            true if old.behind => !found.is_closed(old.mark),
            true => exceeds(fresh, old),
            false => true,
        });
    }

    /// As far as anybody has seen it, or found it behind.
    pub(super) fn furthest(&self) -> Result<Mark, Error> {
        let Sight { seen, behind } = self.sight();
        let known = self.witnesses.load()?.into_iter().map(|witness| witness.mark).chain(behind);
        Ok(known.fold(seen, further))
    }

    /// Why no lane is given out, if so. What was seen, here and by witnesses, is of before it was found, or the write lock is
    /// held: what others do in between must not pass for a step back.
    pub(super) fn stopped(&self, before: Sight, witnesses: &[Witness], found: Found) -> Option<String> {
        if mutant::on("sqlite-outbox-restore-unnoticed") {
            return None;
        }
        let Sight { seen, behind } = before;
        let own = |mark, behind| Witness { store_id: self.facts.store_id, mark, behind };
        let mut known =
            witnesses.iter().copied().chain([own(seen, false)]).chain(behind.map(|from| own(from, true)));
        let missed = known.find(|known| {
            known.store_id != self.facts.store_id
                || found.is_behind(known.mark)
                || (known.behind && found.is_closed(known.mark))
        });
        let Some(missed) = missed else {
            // What is put back from now on is noticed by the next look.
            self.has_come_to(found);
            return None;
        };
        let Mark { epoch, token } = missed.mark;
        let what = if missed.store_id != self.facts.store_id {
            "is not the one that was used at this place before".to_owned()
        } else {
            self.close(further(found.mark, missed.mark));
            match missed.behind {
                true => format!(
                    "was restored from an older state, as was found at epoch {epoch}, message {token}"
                ),
                false => format!(
                    "was restored from an older state: its outbox is at epoch {}, message {}, and was seen at \
                     epoch {epoch}, message {token}",
                    found.mark.epoch, found.mark.token
                ),
            }
        };
        let at = self.place.path().display();
        Some(format!(
            "the database {at} {what}; what waits in it may have been published already. Rebase to publish it again"
        ))
    }
}

/// Whether the one says more than the other.
fn exceeds(fresh: Witness, old: Witness) -> bool {
    further(fresh.mark, old.mark) != old.mark
}
