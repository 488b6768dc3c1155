//! Taking a lane, and finding out whether what its log says can be believed.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Timestamp, micros};
use semel_core::error::{Error, Kind};
use semel_core::outbox::{Lane, LaneStatus, Taken};
use semel_core::{Nonce, mutant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Live, Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::append::found;
use super::cursor::PostgresCursor;
use super::row::lane as read_lane;
use super::{Desk, sql};

/// The newest step of a lane.
pub(super) struct Newest {
    pub(super) status: LaneStatus,
    pub(super) home: Option<String>,
    /// Written by a transaction of this server, not loaded from a dump.
    pub(super) is_native: bool,
    /// It knows transactions the server has not come to.
    pub(super) is_ahead: bool,
    pub(super) now: Timestamp,
}

impl Newest {
    /// Reads a row of `newest.sql`.
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        let lane = read_lane(row, 0)?;
        let epoch: Option<i64> = get(row, 2)?;
        let epoch = epoch.ok_or_else(|| {
            let sentence = format!("the outbox has forgotten lane {}; restore semel_outbox_cursor", lane.0);
            Error::new(Kind::Damaged, sentence)
        })?;
        let holder: Option<&[u8]> = get(row, 4)?;
        let holder = holder.and_then(|bytes| bytes.try_into().ok()).map(Nonce::from_bytes);
        let until: i64 = get(row, 5)?;
        let lease_until = holder.map(|_| Timestamp::from_micros(until));
        Ok(Self {
            status: LaneStatus { lane, epoch: epoch as u64, holder, lease_until },
            home: get(row, 6)?,
            is_native: get(row, 7)?,
            is_ahead: get(row, 12)?,
            now: Timestamp::from_micros(get(row, 13)?),
        })
    }

    /// Why nothing may be published from here, if so. `here` is unknown where the server does not tell.
    pub(super) fn stopped(&self, here: Option<&str>) -> Option<String> {
        let lane = self.status.lane.0;
        let why = match (&self.home, here) {
            _ if mutant::on("outbox-restore-unnoticed") => return None,
            (Some(home), Some(here)) if home != here => {
                format!("it was last published from {home}, and this is {here} (cluster/database)")
            }
            _ if !self.is_native => "its log was loaded from a dump".to_owned(),
            _ if self.is_ahead => "its log knows transactions that the server has not come to".to_owned(),
            _ => return None,
        };
        Some(format!(
            "lane {lane} of the outbox was restored or moved: {why}. What was published since is not known \
             here; rebase to publish again whatever is not known to have been"
        ))
    }
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
    let number = desk.lane(lane)?;
    let mut link = desk.cursors.link_to_any().await?;
    let here = link.live().here(desk.call_timeout).await?;
    let timeline = timeline(link.live(), desk.call_timeout).await?;
    let (clock, lanes, lane_lock, lease_us) = (desk.clock(), vec![number], i32::from(number), micros(lease));
    let taken = transaction(&mut link, async |link| {
        let lock: [Param<'_>; 1] = [(&lane_lock, Type::INT4)];
        let look: [Param<'_>; 2] = [(&lanes, Type::INT2_ARRAY), (&clock, Type::INT8)];
        let first: [Statement<'_>; 2] = [(sql::LOCK_LANE, &lock), (sql::NEWEST, &look)];
        let answers = link.live().run(desk.call_timeout, Some(&desk.begin), &first, End::Open).await?;
        let newest = Newest::read(answers.get(1).and_then(|rows| rows.first()).ok_or_else(no_row)?)?;
        let told = match newest.stopped(here.as_deref()) {
            Some(why) => Some(Taken::Stopped { why }),
            None => held(&newest, holder),
        };
        if let Some(told) = told {
            link.live().run(desk.call_timeout, None, &[("COMMIT", &[])], End::Open).await?;
            return Ok(Err(told));
        }
        let nonce = &holder.as_bytes()[..];
        let take: [Param<'_>; 5] = [
            (&number, Type::INT2),
            (&nonce, Type::BYTEA),
            (&clock, Type::INT8),
            (&lease_us, Type::INT8),
            (&here, Type::TEXT),
        ];
        let statements: [Statement<'_>; 2] = [(sql::RUN, &[]), (sql::TAKE, &take)];
        let answers = link.live().run(desk.call_timeout, None, &statements, End::Commit(&[])).await?;
        let row = answers.get(1).and_then(|rows| rows.first()).ok_or_else(no_row)?;
        Ok::<_, Fault>(Ok((found(row)?, get::<String>(row, 7)?)))
    })
    .await?;
    Ok(match taken {
        Err(told) => told,
        Ok((found, run)) => {
            let mut cursor = PostgresCursor::new(desk.clone(), number, holder, lease, found);
            (cursor.home, cursor.timeline, cursor.run) = (here, timeline, run);
            Taken::Yours(Box::new(cursor))
        }
    })
}

/// Who has it, unless it is free or the asker's own.
fn held(newest: &Newest, holder: Nonce) -> Option<Taken> {
    let until = newest.status.lease_until?;
    let is_free = until <= newest.now || newest.status.holder == Some(holder);
    let wait = until.as_micros().saturating_sub(newest.now.as_micros());
    let wait = Duration::from_micros(u64::try_from(wait).unwrap_or(0));
    (!is_free).then_some(Taken::Held { until, wait })
}

/// Which history the server writes, if it tells.
async fn timeline(live: &Live, limit: Duration) -> Result<Option<String>, Error> {
    match live.query(limit, sql::TIMELINE, &[]).await {
        Ok(rows) => rows.first().map_or(Ok(None), |row| get(row, 0)),
        Err(fault) if fault.broken => Err(fault.error()),
        Err(_) => Ok(None),
    }
}
