//! Taking a lane, finding out whether what the database says can be believed, and going on after a restore.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::outbox::{Lane, Taken, Term};
use semel_core::store::Mark;
use semel_core::{Nonce, Token, mutant};

use super::super::chores::no_row;
use super::super::connect::Live;
use super::super::fault::Fault;
use super::super::pool::retried;
use super::super::row::{maybe_bytes, text, time};
use super::cursor::MysqlCursor;
use super::row::{number, signed};
use super::settle::Writer;
use super::{Desk, is_behind, sql};

/// Longest name of an operator kept with a rebase.
const OPERATOR_BYTES_MAX: usize = 512;

/// Every rebase begins a range of so many epochs. Whoever rebases may remember nothing of the lost state, and none of its
/// epochs may come again: sinks and consumers know them.
const EPOCHS: u64 = 1 << 32;

/// The outbox as a whole.
pub(super) struct Whole {
    pub(super) mark: Mark,
    /// What had been seen of it before it was read. `Err`: of another one.
    seen: Result<Mark, ()>,
    home: Option<String>,
    here: Option<String>,
}

impl Whole {
    /// Reads it, with `hold_meta.sql` or without holding it, with `mark.sql`.
    pub(super) async fn read(desk: &Desk, live: &mut Live, sql: &str) -> Result<Self, Fault> {
        // Before the database: other lanes, of this process and of others, are saved meanwhile.
        let late = mutant::on("my-outbox-seen-asked-late");
        let mut seen = if late { Ok(Mark::default()) } else { desk.remembered()? };
        let rows = live.say(sql).await?;
        let row = rows.first().ok_or_else(no_row)?;
        let mark = Mark { epoch: number(row, 0)?, token: Token(number(row, 2)?) };
        let home = text(row, 1)?.map(str::to_owned);
        let here = desk.connector.examine(live).await?.here;
        if late {
            seen = desk.remembered()?;
        }
        Ok(Self { mark, seen, home, here })
    }

    /// Why nothing may be published from here, if so.
    pub(super) fn stopped(&self) -> Option<String> {
        let why = match (&self.home, &self.here, self.seen) {
            _ if mutant::on("my-outbox-restore-unnoticed") => return None,
            (Some(home), Some(here), _) if home != here => {
                format!("it was last published from {home}, and this is {here} (server/database)")
            }
            (_, _, Err(())) => "it is not the one that was used from here before".to_owned(),
            (_, _, Ok(seen)) if is_behind(self.mark, seen) => format!(
                "it is at epoch {}, message {}, and was seen at epoch {}, message {}",
                self.mark.epoch, self.mark.token, seen.epoch, seen.token
            ),
            _ => return None,
        };
        Some(format!(
            "the outbox was restored or moved: {why}. What was published since is not known here; rebase to \
             publish again whatever is not known to have been"
        ))
    }
}

/// A lane as it is kept.
pub(super) struct Row {
    pub(super) epoch: u64,
    pub(super) holder: Option<Nonce>,
    pub(super) lease_until: Timestamp,
    pub(super) saves: u64,
    pub(super) settled: u64,
}

/// A lane, held until the transaction ends.
pub(super) async fn hold(live: &mut Live, lane: Lane) -> Result<Row, Fault> {
    let rows = live.ask(sql::HOLD_LANE, vec![lane.0.into()]).await?.rows;
    let row = rows.first().ok_or_else(|| {
        let sentence = format!("the outbox has forgotten lane {}; restore semel_outbox_lane", lane.0);
        Error::new(Kind::Damaged, sentence)
    })?;
    let holder = maybe_bytes(row, 1)?.and_then(|bytes| bytes.try_into().ok()).map(Nonce::from_bytes);
    Ok(Row {
        epoch: number(row, 0)?,
        holder,
        lease_until: time(row, 2)?,
        saves: number(row, 3)?,
        settled: number(row, 4)?,
    })
}

/// What came of asking.
enum Asked {
    Yours { epoch: u64, saves: u64, settled: u64 },
    Held { until: Timestamp, wait: Duration },
    Stopped(String),
}

/// Asks for a lane.
///
/// # Cancellation
/// The lane may have been taken; asking again with the same nonce gets it.
pub(super) async fn take(
    desk: &Arc<Desk>,
    lane: Lane,
    holder: Nonce,
    lease: Duration,
) -> Result<Taken, Error> {
    desk.lane(lane)?;
    let asked = retried!(desk.cursors.tries_on_any(), live => ask(desk, live, lane, holder, lease))?;
    Ok(match asked {
        Asked::Held { until, wait } => Taken::Held { until, wait },
        Asked::Stopped(why) => Taken::Stopped { why },
        Asked::Yours { epoch, saves, settled } => {
            desk.saw(Mark { epoch, token: Token(settled) });
            desk.remember(true).await;
            let writer = Writer { term: Term { lane, epoch }, lease, holder, saves };
            Taken::Yours(Box::new(MysqlCursor::new(desk.clone(), writer)))
        }
    })
}

async fn ask(
    desk: &Desk,
    live: &mut Live,
    lane: Lane,
    holder: Nonce,
    lease: Duration,
) -> Result<Asked, Fault> {
    live.begin().await?;
    // The whole first, here and when rebasing: whoever wants both waits in one direction only.
    let whole = Whole::read(desk, live, sql::HOLD_META).await?;
    let told = whole.stopped().map(Asked::Stopped);
    let found = hold(live, lane).await?;
    let now = desk.now(live).await?;
    let by_another = found.holder.is_some_and(|held_by| held_by != holder);
    let held = (by_another && now < found.lease_until)
        .then(|| Asked::Held { until: found.lease_until, wait: found.lease_until.since(now) });
    if let Some(told) = told.or(held) {
        live.roll_back().await?;
        return Ok(told);
    }
    let epoch = whole.mark.epoch + 1;
    live.ask(sql::SET_META, vec![epoch.into(), whole.here.clone().into()]).await?;
    let until = now.after(lease).as_micros();
    live.ask(sql::TAKE, vec![epoch.into(), holder.as_bytes()[..].into(), until.into(), lane.0.into()])
        .await?;
    live.commit(&[("my-outbox-before-take", "my-outbox-after-take")]).await?;
    Ok(Asked::Yours { epoch, saves: found.saves, settled: whole.mark.token.0 })
}

/// After a restore: goes on above everything that was seen of the lost state. What is there was, for all that is
/// known, not published.
///
/// # Cancellation
/// Safe. It is one transaction, done or not.
pub(super) async fn rebase(desk: &Desk, by: &str) -> Result<u64, Error> {
    let by = &by[..by.floor_char_boundary(OPERATOR_BYTES_MAX)];
    let (mark, count) = retried!(desk.chores.tries_on_any(), live => accept(desk, live, by))?;
    desk.saw(mark);
    if let Some(path) = &desk.witness {
        // One of another outbox would stop this one for ever.
        let _ = std::fs::remove_file(path);
    }
    desk.remember(true).await;
    tracing::warn!(by, messages = count, "the outbox was rebased; what is in it is published again");
    Ok(count)
}

async fn accept(desk: &Desk, live: &mut Live, by: &str) -> Result<(Mark, u64), Fault> {
    live.begin().await?;
    let whole = Whole::read(desk, live, sql::HOLD_META).await?;
    let mark = fresh(whole.mark, whole.seen.unwrap_or_default());
    let (epoch, sequence) = (signed(mark.epoch), signed(mark.token.0));
    let now = desk.now(live).await?.as_micros();
    // Whoever saw higher numbers of the lost state must not take this one for behind.
    let settled = if mutant::on("my-outbox-rebase-keeps-settled") { 0 } else { sequence };
    live.ask(sql::FREE_LANES, vec![epoch.into(), settled.into()]).await?;
    live.ask(sql::REBASED, vec![epoch.into(), whole.here.clone().into(), by.into(), now.into()]).await?;
    live.ask(sql::RAISE_SEQUENCE, vec![sequence.into()]).await?;
    live.ask(sql::LOWER_AGAIN, vec![sequence.into()]).await?;
    let rows = live.say(sql::COUNT).await?;
    let count = number(rows.first().ok_or_else(no_row)?, 0)?;
    live.commit(&[]).await?;
    Ok((mark, count))
}

/// Where an outbox goes on after a restore: above what was seen of the lost state, and above what it can have come to since.
fn fresh(found: Mark, seen: Mark) -> Mark {
    let mark = found.acknowledged(seen);
    if mutant::on("my-outbox-rebase-epochs-again") {
        return mark;
    }
    Mark { epoch: (range(mark.epoch) + 1).saturating_mul(EPOCHS), ..mark }
}

/// After how many rebases an epoch was given.
pub(super) fn range(epoch: u64) -> u64 {
    epoch / EPOCHS
}
