//! Deleting what has expired, a little at a time.
//!
//! Each chunk is a short transaction that holds a few hundred rows by their primary keys and skips those
//! in use, so that no claim waits for the sweeper longer than for another claim. Between chunks it rests
//! as long as it worked: expiry is patient, claims are not.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mysql_async::{Row, Value};
use semel_core::OperationId;
use semel_core::clock::Timestamp;
use semel_core::error::Error;
use semel_core::record::{self, Record, Swept};
use semel_core::store::SweepReport;
use tokio::time::{Instant, sleep};

use super::chores::{self, no_row};
use super::connect::Live;
use super::fault::{Again, Fault};
use super::pool::retried;
use super::{Shared, row, sql, step};

/// A record that cannot be read stays; the sweeper passes it by for this long.
const DAMAGED_LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Most records looked at in one transaction.
const CHUNK: u32 = 256;
/// The longest rest between two chunks.
const REST_MAX: Duration = Duration::from_millis(50);
/// Tokens below the highest by less than this are left alone: somebody may still be writing there.
const TOKENS_KEPT: i64 = 1 << 16;
/// Tokens trimmed by one statement, and statements in one sweep.
const TRIM: u64 = 10_000;
const TRIMS_MAX: u32 = 20;

/// Where the present pass has come to. Deleted rows leave entries at the low end of the index until they
/// are purged; starting there each time would mean to step over all of them again.
pub(super) struct Cursor(AtomicI64);

impl Default for Cursor {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

struct Chunk {
    seen: u32,
    report: SweepReport,
    last: Option<i64>,
}

/// Looks at up to `limit` records that are due.
///
/// # Cancellation
/// Safe. The chunk under way is committed or not; those before it are done.
pub(super) async fn sweep(shared: &Shared, limit: u32, unknown_kept: Duration) -> Result<SweepReport, Error> {
    let mut total = SweepReport::default();
    let mut left = limit;
    while left > 0 {
        let wanted = left.min(CHUNK);
        let from = shared.sweep_from.0.load(Ordering::SeqCst);
        let began = Instant::now();
        // Whoever asks for the status must not wait for the whole sweep: a connection per chunk.
        let chunk = retried!(shared.chores.tries(), live => chunk(shared, live, from, wanted, unknown_kept))?;
        total.deleted += chunk.report.deleted;
        total.shrunk += chunk.report.shrunk;
        left -= chunk.seen.min(left);
        if chunk.seen < wanted {
            // The end of the pass. What was skipped on the way is met by the next one.
            shared.sweep_from.0.store(i64::MIN, Ordering::SeqCst);
            if from == i64::MIN {
                trim(shared).await?;
                return Ok(total);
            }
            continue;
        }
        shared.sweep_from.0.store(chunk.last.unwrap_or(i64::MIN), Ordering::SeqCst);
        // Also after the last: who asked for so many asks again at once.
        sleep(began.elapsed().min(REST_MAX)).await;
    }
    trim(shared).await?;
    total.more = limit > 0;
    Ok(total)
}

async fn chunk(
    shared: &Shared,
    live: &mut Live,
    from: i64,
    wanted: u32,
    unknown_kept: Duration,
) -> Result<Chunk, Fault> {
    let now = step::moment(shared, live).await?.now;
    let due = live.ask(sql::DUE, vec![from.into(), now.as_micros().into(), wanted.into()]).await?.rows;
    let (seen, last) = (due.len() as u32, due.last().map(|row| row::int(row, 1)).transpose()?);
    let mut ids: Vec<_> = due.iter().map(row::id).collect::<Result<_, _>>()?;
    // In the order of ids, as everybody takes rows.
    ids.sort();
    if ids.is_empty() {
        return Ok(Chunk { seen, report: SweepReport::default(), last });
    }
    live.begin().await?;
    let held = chores::take(live, &sql::take(), &ids).await?;
    let verdicts = Verdicts::of(&held, now, unknown_kept)?;
    verdicts.carry_out(live).await?;
    live.commit(&[]).await?;
    let (deleted, shrunk) = (verdicts.gone.len() as u64, verdicts.small.len() as u64);
    Ok(Chunk { seen, report: SweepReport { deleted, shrunk, more: false }, last })
}

/// What becomes of the records that were due.
#[derive(Default)]
struct Verdicts {
    gone: Vec<OperationId>,
    small: Vec<Record>,
    again: Vec<(OperationId, Timestamp)>,
}

impl Verdicts {
    fn of(held: &[Row], now: Timestamp, unknown_kept: Duration) -> Result<Self, Error> {
        let mut verdicts = Self::default();
        for row in held {
            let id = row::id(row)?;
            let record = match row::record(row) {
                Ok(record) => record,
                Err(error) => {
                    tracing::error!(%error, "the sweeper leaves a record that cannot be read");
                    verdicts.again.push((id, now.after(DAMAGED_LOOK_AGAIN)));
                    continue;
                }
            };
            match record::sweep(&record, now, unknown_kept) {
                Swept::Gone => verdicts.gone.push(id),
                Swept::Kept(again) => verdicts.again.push((id, again)),
                Swept::Shrunk(small) => {
                    verdicts.again.push((id, now.after(small.terms.ttl)));
                    verdicts.small.push(*small);
                }
            }
        }
        Ok(verdicts)
    }

    async fn carry_out(&self, live: &mut Live) -> Result<(), Fault> {
        if !self.gone.is_empty() {
            let delete = sql::each(sql::DELETE, sql::fill(self.gone.len()));
            live.ask(&delete, chores::filled(&self.gone)).await?;
        }
        step::put_all(live, &self.small).await?;
        if self.again.is_empty() {
            return Ok(());
        }
        let rows = sql::fill(self.again.len());
        let again = || self.again.iter().chain(self.again.last().into_iter().cycle()).take(rows);
        let times = again().flat_map(|(id, at)| [row::key(*id), at.as_micros().into()]);
        let values: Vec<Value> = times.chain(again().map(|(id, _)| row::key(*id))).collect();
        live.ask(&sql::each(sql::LOOK_AGAIN, rows), values).await.map(drop)
    }
}

/// Deletes the rows of old tokens. Only the highest says anything.
async fn trim(shared: &Shared) -> Result<(), Error> {
    for _ in 0..TRIMS_MAX {
        if retried!(shared.chores.tries(), live => trim_some(live))? < TRIM {
            break;
        }
    }
    Ok(())
}

async fn trim_some(live: &mut Live) -> Result<u64, Fault> {
    let highest = live.say(sql::HIGHEST).await?;
    match row::int(highest.first().ok_or_else(no_row)?, 0)? - TOKENS_KEPT {
        ..=0 => Ok(0),
        below => match live.ask(sql::TRIM, vec![below.into()]).await {
            Ok(done) => Ok(done.changed),
            // A transaction that a claim joined long ago is still open. Another time.
            Err(fault) if fault.again == Again::Waited => Ok(0),
            Err(fault) => Err(fault),
        },
    }
}
