//! What changes a lane, each inside one transaction that holds the lane's row.

use std::collections::BTreeSet;

use semel_core::clock::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::outbox::{Aside, Lane, Settled, Tended, Term, shortened};
use semel_core::{Nonce, mutant};

use super::super::chores::no_row;
use super::super::connect::{Crashes, Live};
use super::super::fault::Fault;
use super::super::pool::retried;
use super::super::row::{int, text};
use super::super::sql::{ROWS_MAX, each, fill};
use super::position::{Landed, Named};
use super::read::{Item, Source, filled};
use super::row::{number, signed};
use super::take::{Row, hold, range};
use super::{Desk, sql};

/// Delayed messages moved in one transaction.
const TEND_MAX: usize = 256;
/// Letters in one statement: each may have a long reason.
const LETTERS_MAX: usize = 128;

const SAVING: Crashes = &[("my-outbox-before-save", "my-outbox-after-save")];

/// Whether whoever writes still holds the lane.
pub(super) enum Held<T> {
    Yes(T),
    /// Somebody else does. Nothing was changed.
    Fenced,
}

/// Who writes, and how long it is to hold the lane.
#[derive(Clone, Copy)]
pub(super) struct Writer {
    pub(super) term: Term,
    pub(super) lease: std::time::Duration,
    /// Two relays may have one epoch, if the server forgot who took the lane first.
    pub(super) holder: Nonce,
    /// How many saves the lane has seen, by the last answer.
    pub(super) saves: u64,
}

impl Writer {
    fn holds(self, found: &Row) -> bool {
        let is_ours = found.holder == Some(self.holder) || mutant::on("my-outbox-holder-not-compared");
        found.epoch == self.term.epoch && is_ours
    }

    /// Locks the lane. `None`: it is another's now.
    async fn hold(self, live: &mut Live) -> Result<Option<Row>, Fault> {
        live.begin().await?;
        let found = hold(live, self.term.lane).await?;
        if !self.holds(&found) && !mutant::on("my-outbox-zombie-believed") {
            live.roll_back().await?;
            return Ok(None);
        }
        if found.saves < self.saves && !mutant::on("my-outbox-own-saves-uncounted") {
            // What was settled by the lost saves waits again, perhaps below what was read.
            return Err(went_back(&format!(
                "lane {} had seen {} saves, and this database knows of {}",
                self.term.lane.0, self.saves, found.saves
            )));
        }
        Ok(Some(found))
    }

    /// Ends a save: the lease is renewed.
    async fn keep(self, live: &mut Live, found: &Row, now: Timestamp, settled: u64) -> Result<u64, Fault> {
        // Never backwards: a clock that jumped back must not shorten a lease.
        let until = now.after(self.lease).max(found.lease_until).as_micros();
        let saves = found.saves + 1;
        let values = vec![until.into(), saves.into(), signed(settled).into(), self.term.lane.0.into()];
        live.ask(sql::KEEP, values).await?;
        live.commit(SAVING).await?;
        Ok(saves)
    }

    /// Settles, and renews the lease. How many saves the lane has seen then.
    pub(super) async fn save(
        self,
        desk: &Desk,
        live: &mut Live,
        settled: &[(Item, Settled)],
    ) -> Result<Held<u64>, Fault> {
        let lane = self.term.lane;
        let Some(found) = self.hold(live).await? else { return Ok(Held::Fenced) };
        let now = desk.now(live).await?;
        let of = |source: Source| settled.iter().filter(move |(item, _)| item.source == source);
        let is_sent = |(_, settled): &&(Item, Settled)| *settled == Settled::Sent;
        let name = |(item, _): &(Item, Settled)| (item.entry.sequence, item.entry.message.id);

        let letters: Vec<_> = of(Source::Aside).map(name).collect();
        if !letters.is_empty() && !mutant::on("my-outbox-settles-another-letter") {
            let count = letters.len();
            let rows =
                live.ask(sql::ARE_LETTERS, vec![sql::named(letters).into(), lane.0.into()]).await?.rows;
            all(number(rows.first().ok_or_else(no_row)?, 0)?, count)?;
        }
        // From here on numbers will do for letters: with the lane in hand nobody else changes them.
        let numbers = |(item, _): &(Item, Settled)| item.entry.sequence;

        let aside: Vec<_> = of(Source::Outbox).filter(|pair| !is_sent(pair)).collect();
        for some in aside.chunks(LETTERS_MAX) {
            let values = vec![now.as_micros().into(), verdicts(some, now).into(), lane.0.into()];
            all(live.ask(&sql::set_aside(), values).await?.changed, some.len())?;
        }
        let waited: Vec<_> = of(Source::Outbox).map(name).collect();
        if !waited.is_empty() {
            let values = vec![sql::named(waited.iter().copied()).into(), lane.0.into()];
            all(live.ask(&sql::remove(), values).await?.changed, waited.len())?;
        }
        let sent: Vec<u64> = of(Source::Aside).filter(is_sent).map(numbers).collect();
        if !sent.is_empty() {
            live.ask(sql::REMOVE_LETTERS, vec![sql::list(sent).into()]).await?;
        }
        let behind = |(_, settled): &&(Item, Settled)| *settled == Settled::Behind;
        let waits: Vec<u64> = of(Source::Aside).filter(behind).map(numbers).collect();
        if !waits.is_empty() {
            live.ask(sql::WAIT_BEHIND, vec![sql::list(waits).into()]).await?;
        }
        let again: Vec<_> = of(Source::Aside).filter(|pair| !is_sent(pair) && !behind(pair)).collect();
        for some in again.chunks(LETTERS_MAX) {
            live.ask(sql::CHANGE_LETTERS, vec![verdicts(some, now).into(), now.as_micros().into()]).await?;
        }
        // What went straight out of the outbox was behind nobody.
        let changed = settled
            .iter()
            .filter(|(item, settled)| item.source == Source::Aside || *settled != Settled::Sent);
        let keys: BTreeSet<&str> =
            changed.filter_map(|(item, _)| item.entry.message.key.as_deref()).collect();
        park(live, lane, &keys.into_iter().collect::<Vec<_>>(), now).await?;
        let last = waited.into_iter().map(|(sequence, _)| sequence).max().unwrap_or(0).max(found.settled);
        Ok(Held::Yes(self.keep(live, &found, now, last).await?))
    }

    /// Settles what a sink says has landed. How many saves the lane has seen then.
    pub(super) async fn adopt(
        self,
        desk: &Desk,
        live: &mut Live,
        landed: &Landed,
    ) -> Result<Held<u64>, Fault> {
        let lane = self.term.lane;
        let Some(found) = self.hold(live).await? else { return Ok(Held::Fenced) };
        let now = desk.now(live).await?;
        let landed = if self.must_believe(&found, landed)? { &landed.messages[..] } else { &[] };
        let waited: Vec<&Named> = landed.iter().filter(|landed| landed.tries.is_none()).collect();
        let mut last = found.settled;
        if !waited.is_empty() {
            let names = waited.iter().map(|landed| (landed.sequence, landed.id));
            let values = vec![sql::named(names).into(), lane.0.into()];
            if live.ask(sql::LANDED, values).await?.changed > 0 {
                last = waited.iter().map(|landed| landed.sequence).max().unwrap_or(0).max(last);
            }
        }
        let letters: Vec<(&Named, u32)> =
            landed.iter().filter_map(|landed| Some((landed, landed.tries?))).collect();
        if !letters.is_empty() {
            let name = |(landed, tries): &(&Named, u32)| {
                let (sequence, id) = (landed.sequence, sql::hex(landed.id.as_bytes()));
                format!(r#"{{"s":{sequence},"i":"{id}","t":{tries}}}"#)
            };
            let rows =
                live.ask(sql::LANDED_KEYS, vec![sql::objects(&letters, name).into(), lane.0.into()]).await?;
            let (mut numbers, mut keys) = (Vec::new(), BTreeSet::new());
            for row in &rows.rows {
                numbers.push(number(row, 0)?);
                keys.extend(text(row, 1)?);
            }
            if !numbers.is_empty() {
                live.ask(sql::REMOVE_LETTERS, vec![sql::list(numbers).into()]).await?;
                park(live, lane, &keys.into_iter().collect::<Vec<_>>(), now).await?;
            }
        }
        Ok(Held::Yes(self.keep(live, &found, now, last).await?))
    }

    /// Whether what a sink says is of this state. `false`: it is from before a rebase. What it names may be another's number
    /// by now, or have landed behind what waits again.
    fn must_believe(self, found: &Row, landed: &Landed) -> Result<bool, Fault> {
        if mutant::on("my-outbox-lost-position-believed") {
            return Ok(true);
        }
        if range(landed.epoch) < range(self.term.epoch) {
            return Ok(false);
        }
        let (epoch, lane) = (self.term.epoch, self.term.lane.0);
        let ahead = landed.epoch > epoch || landed.saves > found.saves;
        if ahead && !mutant::on("my-outbox-saves-uncounted") {
            return Err(went_back(&format!(
                "a sink knows of epoch {} and {} saves of lane {lane}, and this database is at epoch {epoch} with {}",
                landed.epoch, landed.saves, found.saves
            )));
        }
        Ok(true)
    }

    /// What became of a save whose answer did not come: how many saves the lane has seen, if it is still ours.
    /// Whoever asks waits until the transaction that saved has ended.
    pub(super) async fn resolve(self, live: &mut Live) -> Result<Option<u64>, Fault> {
        live.begin().await?;
        let found = hold(live, self.term.lane).await?;
        live.roll_back().await?;
        Ok(self.holds(&found).then_some(found.saves))
    }
}

/// All of them were there, because nobody but the lane's holder removes any. In a database that was set back numbers are
/// given again: what is settled must be what was read.
fn all(there: u64, read: usize) -> Result<(), Fault> {
    match there == read as u64 {
        true => Ok(()),
        false => Err(went_back(&format!(
            "of {read} messages that this relay has read {there} are still there under their numbers"
        ))),
    }
}

/// The database does not hold what this relay knows it held.
fn went_back(why: &str) -> Fault {
    let sentence = format!(
        "the outbox is not where it was: {why}; the database was set back to an older state, or somebody changes it by \
         hand. Rebase the outbox: what waits is then published, for all that is known, for the first time"
    );
    Fault::new(Kind::WentBack, sentence)
}

/// What became of messages that were not sent, as `set_aside.sql` and `change_letters.sql` take it.
fn verdicts(pairs: &[&(Item, Settled)], now: Timestamp) -> String {
    sql::objects(pairs, |(item, settled)| {
        let (aside, tried, reason, again_at) = match settled {
            Settled::Later { reason, again_in } => {
                (Aside::Later, 1, shortened(reason), Some(now.after(*again_in).as_micros()))
            }
            Settled::Dead { reason } => (Aside::Dead, 1, shortened(reason), None),
            Settled::Behind | Settled::Sent => (Aside::Behind, 0, "", None),
        };
        let (sequence, aside) = (item.entry.sequence, aside as u8);
        let id = sql::hex(item.entry.message.id.as_bytes());
        let (tries, reason) = (item.entry.tries.saturating_add(tried), sql::hex(reason.as_bytes()));
        let again_at = again_at.map_or("null".to_owned(), |at| at.to_string());
        format!(r#"{{"s":{sequence},"i":"{id}","a":{aside},"t":{tries},"r":"{reason}","g":{again_at}}}"#)
    })
}

/// Writes down of keys when the first of each may go, or that nothing of it is set aside.
pub(super) async fn park(live: &mut Live, lane: Lane, keys: &[&str], now: Timestamp) -> Result<(), Fault> {
    for keys in keys.chunks(ROWS_MAX) {
        let rows = fill(keys.len());
        live.ask(&each(sql::UNPARK, rows), filled(keys).map(Into::into).collect()).await?;
        let now = now.as_micros();
        let mut values = vec![now.into(), now.into(), lane.0.into()];
        values.extend(filled(keys).map(mysql_async::Value::from));
        live.ask(&each(&sql::park(), rows), values).await?;
    }
    Ok(())
}

/// Moves delayed messages whose time has come into their lanes.
///
/// # Cancellation
/// Safe. It is one transaction, done or not.
pub(super) async fn tend(desk: &Desk) -> Result<Tended, Error> {
    retried!(desk.chores.tries_on_any(), live => release(desk, live))
}

async fn release(desk: &Desk, live: &mut Live) -> Result<Tended, Fault> {
    let clock = desk.clock();
    let any = live.ask(sql::ANY_DUE, vec![clock.into()]).await?.rows;
    if int(any.first().ok_or_else(no_row)?, 0)? == 0 {
        return Ok(Tended::default());
    }
    live.begin().await?;
    let due = live.ask(sql::DUE, vec![clock.into(), TEND_MAX.into()]).await?.rows;
    let due: Vec<u64> = due.iter().map(|row| number(row, 0)).collect::<Result<_, _>>()?;
    if due.is_empty() {
        live.roll_back().await?;
        return Ok(Tended::default());
    }
    live.ask(sql::RELEASE, vec![clock.into(), sql::list(due.iter().copied()).into()]).await?;
    live.ask(sql::REMOVE_DELAYED, vec![sql::list(due.iter().copied()).into()]).await?;
    live.commit(&[]).await?;
    Ok(Tended { due: due.len() as u64, removed: 0, more: due.len() == TEND_MAX })
}
