//! How far this process has seen its store come, and whether what it finds now is behind that.
//!
//! A database restored from a backup, a standby promoted with commits missing, a dump loaded
//! elsewhere: each has forgotten outcomes it once gave, and would run effects again. It answers
//! nothing until an operator says that this is known. (What nobody saw, nobody can miss: a
//! [witness](crate::witness) extends the sight beyond this process.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use semel_core::error::{Error, Kind};
use semel_core::store::Mark;
use semel_core::{OperationId, Token};

/// While behind, the store is examined again at most this often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a store says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) store_id: [u8; 16],
    pub(crate) mark: Mark,
    /// Where its state was made or acknowledged, and where it is now. `None`: the server does not tell.
    pub(crate) home: Option<String>,
    pub(crate) here: Option<String>,
    /// The newest record that is there, where the store looks for records.
    pub(crate) newest: Option<Kept>,
    /// Whether the record that was seen last is gone, and nobody deleted it.
    pub(crate) lost: bool,
}

const LOST: &str = "a record that was committed is not there";

/// A record that is on disk: its operation, and a token it has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) operation: OperationId,
    pub(crate) token: Token,
}

impl Kept {
    /// The one with the higher token.
    pub(crate) fn newer(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).max_by_key(|kept| kept.token)
    }
}

/// What was seen of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `None` until it was seen at all.
    pub(crate) store_id: Option<[u8; 16]>,
    pub(crate) mark: Mark,
    /// The newest record seen. A counter can be ahead of the records that were drawn from it, and others may draw
    /// on before this process looks again; a record is there or it is not.
    pub(crate) last: Option<Kept>,
}

pub(crate) struct Horizon {
    /// The store's name, for sentences.
    engine: &'static str,
    /// The highest token seen. Apart from the rest because every claim touches it.
    token: AtomicU64,
    is_behind: AtomicBool,
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    store_id: Option<[u8; 16]>,
    epoch: u64,
    last: Option<Kept>,
    behind: Option<Behind>,
    looked: Option<Instant>,
}

struct Behind {
    from: Mark,
    why: &'static str,
}

impl Rest {
    /// Whether nobody has found or accepted another store or epoch since.
    fn is_what_was(&self, seen: Seen) -> bool {
        (self.store_id, self.epoch) == (seen.store_id, seen.mark.epoch)
            || semel_core::mutant::on("past-state-judged")
    }
}

impl Horizon {
    /// Starts from what a witness remembers.
    pub(crate) fn new(engine: &'static str, seen: Seen) -> Self {
        let rest =
            Rest { store_id: seen.store_id, epoch: seen.mark.epoch, last: seen.last, ..Rest::default() };
        Self { engine, token: seen.mark.token.0.into(), is_behind: AtomicBool::new(false), rest: rest.into() }
    }

    /// Ask before looking: what others do in between must not pass for a step back.
    pub(crate) fn seen(&self) -> Seen {
        let rest = self.rest();
        let token = Token(self.token.load(Ordering::SeqCst));
        Seen { store_id: rest.store_id, mark: Mark { epoch: rest.epoch, token }, last: rest.last }
    }

    /// The commit of this record was answered.
    #[cfg(feature = "postgres")]
    pub(crate) fn keep(&self, kept: Kept) {
        let mut rest = self.rest();
        rest.last = Kept::newer(rest.last, Some(kept));
    }

    /// A token was drawn, and `before` was seen when it was asked for. One that is not above those seen
    /// then means that the counter was set back under our feet: the store is closed, and this says `false`.
    #[must_use]
    pub(crate) fn note(&self, fresh: Token, before: Seen) -> bool {
        self.token.fetch_max(fresh.0, Ordering::SeqCst);
        let fine = fresh > before.mark.token || semel_core::mutant::on("pg-token-not-watched");
        if !fine {
            self.fall_behind(before, fresh, "it gave a token below one it gave before");
        }
        fine
    }

    /// A record holds a token the counter had not reached. `before` was seen when it was asked for.
    pub(crate) fn note_ahead(&self, held: Token, before: Seen) {
        self.fall_behind(before, held, "a record has a token the store has not come to");
    }

    /// The newest record of `before` was looked for, and is gone.
    #[cfg(feature = "postgres")]
    pub(crate) fn lost(&self, before: Seen) {
        self.fall_behind(before, before.mark.token, LOST);
    }

    fn fall_behind(&self, before: Seen, met: Token, why: &'static str) {
        let mut rest = self.rest();
        if rest.is_what_was(before) {
            let token = Token(self.token.fetch_max(met.0, Ordering::SeqCst)).max(met);
            rest.behind = Some(Behind { from: Mark { epoch: rest.epoch, token }, why });
            self.is_behind.store(true, Ordering::SeqCst);
        }
    }

    /// Compares what is found now with what was seen before. `false`: meanwhile somebody found or accepted
    /// another state, so this says nothing; look again.
    #[must_use]
    pub(crate) fn judge(&self, seen: Seen, found: &Found) -> bool {
        let moved = matches!((&found.home, &found.here), (Some(home), Some(here)) if home != here);
        let why = if seen.store_id.is_some_and(|id| id != found.store_id) {
            Some("another store is there now")
        } else if found.mark.is_behind(seen.mark) {
            Some("it has forgotten what it had come to")
        } else if found.lost && !semel_core::mutant::on("pg-lost-record-unnoticed") {
            Some(LOST)
        } else if moved && !semel_core::mutant::on("pg-home-not-compared") {
            Some("its state was made in another cluster or database")
        } else {
            None
        };
        let mut rest = self.rest();
        if !rest.is_what_was(seen) {
            return false;
        }
        if why.is_none() && rest.behind.as_ref().is_some_and(|behind| found.mark.epoch <= behind.from.epoch) {
            // Others, who had not seen as much, went on until the numbers fit again. What was
            // forgotten stays forgotten: only an operator's new epoch opens the store.
            rest.looked = Some(Instant::now());
            return true;
        }
        if why.is_none() {
            self.token.fetch_max(found.mark.token.0, Ordering::SeqCst);
        }
        rest.behind = why.map(|why| Behind { from: seen.mark.max(found.mark), why });
        rest.looked = Some(Instant::now());
        if why.is_none() {
            rest.store_id = Some(found.store_id);
            rest.epoch = rest.epoch.max(found.mark.epoch);
            rest.last = Kept::newer(rest.last, found.newest);
        }
        self.is_behind.store(why.is_some(), Ordering::SeqCst);
        true
    }

    /// An operator accepted the store as it is.
    pub(crate) fn accept(&self, store_id: [u8; 16], mark: Mark) {
        let mut rest = self.rest();
        if rest.store_id == Some(store_id) && rest.epoch > mark.epoch {
            // Accepted once more since, and seen here already.
            return;
        }
        // What was seen of the same store lies below what its operator gave up, and so is not missed any more.
        rest.last = rest.last.filter(|_| rest.store_id == Some(store_id));
        rest.store_id = Some(store_id);
        rest.epoch = mark.epoch;
        rest.behind = None;
        self.token.store(mark.token.0, Ordering::SeqCst);
        self.is_behind.store(false, Ordering::SeqCst);
    }

    /// Where the store was before it went back, if it did.
    pub(crate) fn behind(&self) -> Option<Mark> {
        self.rest().behind.as_ref().map(|behind| behind.from)
    }

    /// Refuses everything while the store is behind.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.is_behind.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(self.refusal())
    }

    /// What is said while the store is behind, and to a write that met it so, also if it was accepted since.
    pub(crate) fn refusal(&self) -> Error {
        let why = self.rest().behind.as_ref().map_or("it went back", |behind| behind.why);
        Error::new(
            Kind::WentBack,
            format!(
                "the {} store was restored from an older state: {why}. Nothing runs until an operator has \
                 compared it with what happened since, and acknowledges the restore (semel store acknowledge --by NAME)",
                self.engine
            ),
        )
    }

    /// Whether it is time to look whether somebody acknowledged elsewhere.
    pub(crate) fn should_look(&self) -> bool {
        let mut rest = self.rest();
        let due = rest.looked.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if due {
            rest.looked = Some(Instant::now());
        }
        due
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(epoch: u64, token: u64) -> Found {
        let mark = Mark { epoch, token: Token(token) };
        Found {
            store_id: [1; 16],
            mark,
            home: Some("a/1".into()),
            here: Some("a/1".into()),
            newest: None,
            lost: false,
        }
    }

    #[test]
    fn a_store_is_behind_only_if_it_lost_something_or_moved() {
        // G-13
        let horizon = Horizon::new("test", Seen::default());
        assert!(horizon.judge(horizon.seen(), &found(1, 10)));
        horizon.check().unwrap();
        assert!(horizon.note(Token(12), horizon.seen()));
        assert!(horizon.judge(horizon.seen(), &found(1, 12)));
        horizon.check().unwrap();
        assert!(horizon.judge(horizon.seen(), &found(1, 11)));
        assert_eq!(horizon.check().unwrap_err().kind(), Kind::WentBack);
        assert_eq!(horizon.behind(), Some(Mark { epoch: 1, token: Token(12) }));
        assert!(horizon.judge(horizon.seen(), &found(2, 5)));
        horizon.check().unwrap();

        let moved = Found { here: Some("b/1".into()), ..found(2, 20) };
        assert!(horizon.judge(horizon.seen(), &moved));
        assert_eq!(horizon.check().unwrap_err().kind(), Kind::WentBack);
        let other = Found { store_id: [2; 16], ..found(9, 99) };
        assert!(horizon.judge(horizon.seen(), &other));
        assert_eq!(horizon.check().unwrap_err().kind(), Kind::WentBack);
        horizon.accept([2; 16], other.mark);
        assert!(horizon.judge(horizon.seen(), &other));
        horizon.check().unwrap();
        let untold = Found { here: None, ..other };
        assert!(horizon.judge(horizon.seen(), &untold));
        horizon.check().unwrap();
    }

    #[test]
    fn a_token_that_is_not_above_all_seen_before_closes_the_store() {
        // G-13
        let horizon = Horizon::new("test", Seen::default());
        assert!(horizon.judge(horizon.seen(), &found(1, 10)));
        let before = horizon.seen();
        assert!(horizon.note(Token(12), before));
        assert!(horizon.note(Token(11), before));
        assert!(!horizon.note(Token(3), horizon.seen()));
        assert_eq!(horizon.check().unwrap_err().kind(), Kind::WentBack);
    }

    #[test]
    fn the_newest_record_seen_is_what_is_looked_for_and_another_stores_is_forgotten() {
        // G-13
        let kept =
            |byte, token| Some(Kept { operation: OperationId::from_bytes([byte; 32]), token: Token(token) });
        let horizon = Horizon::new("test", Seen { last: kept(1, 5), ..Seen::default() });
        assert!(horizon.judge(horizon.seen(), &Found { newest: kept(2, 9), ..found(1, 10) }));
        assert_eq!(horizon.seen().last, kept(2, 9));
        assert!(horizon.judge(horizon.seen(), &Found { newest: kept(3, 8), ..found(1, 10) }));
        assert_eq!(horizon.seen().last, kept(2, 9));
        let lost = Found { newest: kept(4, 40), lost: true, ..found(1, 42) };
        assert!(horizon.judge(horizon.seen(), &lost));
        assert!(horizon.check().unwrap_err().to_string().contains("is not there"));
        assert_eq!(horizon.seen().last, kept(2, 9), "what is there then says nothing about what was");
        horizon.accept([1; 16], Mark { epoch: 2, token: Token(99) });
        assert_eq!(horizon.seen().last, kept(2, 9));
        horizon.accept([2; 16], Mark { epoch: 3, token: Token(99) });
        assert_eq!(horizon.seen().last, None);
    }

    #[test]
    fn what_was_looked_at_before_an_acknowledgement_does_not_close_the_store_after_it() {
        // G-13
        let horizon = Horizon::new("test", Seen { store_id: Some([9; 16]), ..Seen::default() });
        let (before, restored) = (horizon.seen(), found(1, 10));
        assert!(horizon.judge(before, &restored));
        assert_eq!(horizon.check().unwrap_err().kind(), Kind::WentBack);
        let accepted = restored.mark.acknowledged(before.mark);
        horizon.accept(restored.store_id, accepted);
        assert!(!horizon.judge(before, &restored), "it has to be looked at again");
        horizon.check().unwrap();
        assert!(!horizon.note(Token(0), before), "nor is what was drawn then believed");
        horizon.note_ahead(Token(u64::MAX), before);
        horizon.check().unwrap();
        assert_eq!(horizon.seen().mark, accepted);
        horizon.accept(restored.store_id, Mark { epoch: accepted.epoch - 1, token: Token(3) });
        assert_eq!(horizon.seen().mark, accepted, "an older word that comes late changes nothing");
        assert!(horizon.judge(horizon.seen(), &Found { mark: accepted, ..restored }));
        horizon.check().unwrap();
    }
}
