//! Deleting what has expired, a little at a time.
//!
//! Each chunk is a short transaction that skips rows in use, so that no claim waits for the sweeper
//! longer than for another claim. Between chunks it rests as long as it worked: expiry is patient,
//! claims are not.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::error::Error;
use semel_core::record::{self, Record, Swept};
use semel_core::store::SweepReport;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;

use super::chores::{no_row, transaction};
use super::connect::{Param, get};
use super::fault::Fault;
use super::pipeline::{End, Statement};
use super::pool::Link;
use super::row::{self, Columns};
use super::{Shared, sql};

/// A record that cannot be read stays; the sweeper passes it by for this long.
const DAMAGED_LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Most records looked at in one transaction. Few: on two cores a claim waits for most of one chunk.
const CHUNK: u32 = 128;
/// The longest rest between two chunks.
const REST_MAX: Duration = Duration::from_millis(50);

/// Where the present pass has come to. Deleted rows leave dead entries at the low end of the index
/// until the next vacuum; starting there each time would mean to step over all of them again.
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
        let mut link = shared.chores.link().await?;
        let wanted = left.min(CHUNK);
        let from = shared.sweep_from.0.load(Ordering::SeqCst);
        let began = Instant::now();
        let chunk =
            transaction(&mut link, async |link| chunk(shared, link, from, wanted, unknown_kept).await)
                .await?;
        // Whoever asks for the status must not wait for the whole sweep.
        drop(link);
        total.deleted += chunk.report.deleted;
        total.shrunk += chunk.report.shrunk;
        left -= chunk.seen.min(left);
        if chunk.seen < wanted {
            // The end of the pass. What was skipped on the way is met by the next one.
            shared.sweep_from.0.store(i64::MIN, Ordering::SeqCst);
            if from == i64::MIN {
                return Ok(total);
            }
            continue;
        }
        shared.sweep_from.0.store(chunk.last.unwrap_or(i64::MIN), Ordering::SeqCst);
        // Also after the last: who asked for so many asks again at once.
        sleep(began.elapsed().min(REST_MAX)).await;
    }
    total.more = limit > 0;
    Ok(total)
}

async fn chunk(
    shared: &Shared,
    link: &Link<'_>,
    from: i64,
    wanted: u32,
    unknown_kept: Duration,
) -> Result<Chunk, Fault> {
    let (clock, wanted) = (shared.clock(), i64::from(wanted));
    let params: [Param<'_>; 3] = [(&clock, Type::INT8), (&from, Type::INT8), (&wanted, Type::INT8)];
    let sweep = sql::sweep();
    let look: [Statement<'_>; 1] = [(&sweep, &params)];
    let answers = link.live().run(shared.call_timeout, Some(&shared.begin), &look, End::Open).await?;
    let rows = answers.into_iter().next().unwrap_or_default();
    let first = rows.first().ok_or_else(no_row)?;
    let now = row::time(first, 0)?;
    let mut report = SweepReport { deleted: get::<i64>(first, 2)? as u64, ..SweepReport::default() };
    let (seen, last) = (get::<i64>(first, 1)? as u32, get(first, 3)?);
    let mut kept = Vec::with_capacity(rows.len());
    let mut unreadable = Vec::new();
    for row in &rows {
        let Some(id) = get::<Option<&[u8]>>(row, 4)? else { continue };
        match row::record(row, 4) {
            Ok(record) => kept.push(record),
            Err(error) => {
                tracing::error!(%error, "the sweeper leaves a record that cannot be read");
                unreadable.push(id.to_vec());
            }
        }
    }
    let mut later = Later::of(&kept, now, unknown_kept);
    later.again.extend(unreadable.iter().map(|_| now.after(DAMAGED_LOOK_AGAIN).as_micros()));
    later.ids.append(&mut unreadable);
    report.shrunk = later.small.len() as u64;
    finish(shared, link, &later).await?;
    Ok(Chunk { seen, report, last })
}

/// What becomes of the records that were due but had not expired.
#[derive(Default)]
struct Later {
    small: Vec<Record>,
    ids: Vec<Vec<u8>>,
    again: Vec<i64>,
}

impl Later {
    fn of(kept: &[Record], now: Timestamp, unknown_kept: Duration) -> Self {
        let mut later = Self::default();
        for record in kept {
            let again = match record::sweep(record, now, unknown_kept) {
                Swept::Kept(again) => again,
                Swept::Shrunk(small) => {
                    let again = now.after(small.terms.ttl);
                    later.small.push(*small);
                    again
                }
                // The statement deletes what has expired; if it did not, the next pass decides.
                Swept::Gone => continue,
            };
            later.ids.push(record.operation.id().as_bytes().to_vec());
            later.again.push(again.as_micros());
        }
        later
    }
}

async fn finish(shared: &Shared, link: &Link<'_>, later: &Later) -> Result<(), Fault> {
    let columns = Columns::of(&later.small);
    let put = columns.put();
    let again: [Param<'_>; 2] = [(&later.ids, Type::BYTEA_ARRAY), (&later.again, Type::INT8_ARRAY)];
    let mut statements: Vec<Statement<'_>> = Vec::new();
    if !later.small.is_empty() {
        statements.push((sql::PUT, &put));
    }
    if !later.ids.is_empty() {
        statements.push((sql::LOOK_AGAIN, &again));
    }
    link.live().run(shared.call_timeout, None, &statements, End::Commit(&[])).await.map(drop)
}
