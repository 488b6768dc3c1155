//! Emptying what was read: parts of the ring of messages, halves of the log.
//!
//! TRUNCATE needs the part for itself, for a moment. Whoever waits for that makes writers wait behind it,
//! so it is waited for very shortly; and the part being written is only taken if it is free at once.

use std::time::Duration;

use semel_core::error::Error;
use semel_core::mutant;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Param, get};
use super::super::pipeline::{End, Statement};
use super::chores::unless_busy;
use super::{Desk, sql};

/// How long a part is waited for, and writers behind it.
const LOCK_WAIT: Duration = Duration::from_millis(50);
/// How long messages stay in the part that is being written, and the next, if nobody comes to those.
const QUIET: Duration = Duration::from_secs(3600);
/// How long counting the rows of a part may take.
const COUNT_TIMEOUT: Duration = Duration::from_secs(60);
const PARTS: i32 = 8;

/// Empties parts of the ring in which everything is settled. Returns how many messages are gone.
pub(super) async fn rotate(desk: &Desk) -> Result<u64, Error> {
    let here = here(desk).await?;
    let answers = desk.read(&desk.chores, desk.call_timeout, &[(sql::RING, &[])]).await?;
    let mut removed = 0;
    for row in answers.first().ok_or_else(no_row)? {
        let (part, has_rows, current): (i32, bool, i32) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        if has_rows {
            let is_ahead = (part - current).rem_euclid(PARTS) <= 1;
            removed += empty(desk, part, is_ahead, here.as_deref()).await?;
        }
    }
    Ok(removed)
}

async fn here(desk: &Desk) -> Result<Option<String>, Error> {
    let mut link = desk.chores.link_to_any().await?;
    link.busy();
    let here = link.live().here(desk.call_timeout).await;
    if here.is_ok() {
        link.done();
    }
    here
}

/// Looks first without a lock: what is not settled now is left alone.
async fn empty(desk: &Desk, part: i32, is_ahead: bool, here: Option<&str>) -> Result<u64, Error> {
    let covered = sql::of_part(sql::COVERED, part);
    let params: [Param<'_>; 1] = [(&here, Type::TEXT)];
    let answers = desk.read(&desk.chores, desk.call_timeout, &[(&covered, &params)]).await?;
    if !is_true(&answers, 0)? {
        return Ok(0);
    }
    let count = sql::of_part(sql::PART, part);
    let limit = COUNT_TIMEOUT.max(desk.call_timeout);
    let clock = desk.clock();
    let answers = desk.read(&desk.chores, limit, &[(&count, &[(&clock, Type::INT8)])]).await?;
    let row = answers.first().and_then(|rows| rows.first()).ok_or_else(no_row)?;
    let (rows, age): (i64, i64) = (get(row, 0)?, get(row, 1)?);
    if is_ahead && age < QUIET.as_micros() as i64 {
        return Ok(0);
    }
    let is_gone = unless_busy(truncate(desk, part, is_ahead, &covered, &params).await)?;
    Ok(if is_gone { rows.max(0) as u64 } else { 0 })
}

async fn truncate(
    desk: &Desk,
    part: i32,
    at_once: bool,
    covered: &str,
    params: &[Param<'_>],
) -> Result<bool, Error> {
    let mut lock = sql::of_part(sql::LOCK_PART, part);
    if at_once {
        lock.push_str(" NOWAIT");
    }
    let first: [Statement<'_>; 2] = [(&lock, &[]), (covered, params)];
    clear(desk, &first, &sql::of_part(sql::TRUNCATE_PART, part)).await
}

/// Locks, asks whether everything there may go, and lets it go.
async fn clear(desk: &Desk, first: &[Statement<'_>; 2], truncate: &str) -> Result<bool, Error> {
    let begin = format!("{}SET LOCAL lock_timeout = {};\n", desk.begin, LOCK_WAIT.as_millis());
    let mut link = desk.chores.link_to_any().await?;
    transaction(&mut link, async |link| {
        let answers = link.live().run(desk.call_timeout, Some(&begin), first, End::Open).await?;
        let may_go = is_true(&answers, 1)?;
        if may_go {
            let truncate: [Statement<'_>; 1] = [(truncate, &[])];
            link.live().run(desk.call_timeout, None, &truncate, End::Commit(&[])).await?;
        } else {
            link.live().run(desk.call_timeout, None, &[("ROLLBACK", &[])], End::Open).await?;
        }
        Ok(may_go)
    })
    .await
}

fn is_true(answers: &[Vec<tokio_postgres::Row>], at: usize) -> Result<bool, Error> {
    let row = answers.get(at).and_then(|rows| rows.first()).ok_or_else(no_row)?;
    Ok(get(row, 0)? || mutant::on("outbox-truncates-unread"))
}

/// Goes on to the other half of the log if one is full, and empties the one that was left.
pub(super) async fn rotate_log(desk: &Desk) -> Result<(), Error> {
    let answers = desk.read(&desk.chores, desk.call_timeout, &[(sql::LOG, &[])]).await?;
    let row = answers.first().and_then(|rows| rows.first()).ok_or_else(no_row)?;
    let (mut half, is_full, mut other_has_rows): (i16, bool, bool) =
        (get(row, 0)?, get(row, 1)?, get(row, 2)?);
    if is_full && !other_has_rows {
        desk.write(&desk.begin, &[(sql::FLIP, &[(&half, Type::INT2)])]).await?;
        (half, other_has_rows) = (1 - half, true);
    }
    if other_has_rows {
        unless_busy(leave(desk, half).await)?;
    }
    Ok(())
}

async fn leave(desk: &Desk, half: i16) -> Result<(), Error> {
    let begin = format!("{}SET LOCAL lock_timeout = {};\n", desk.begin, LOCK_WAIT.as_millis());
    let params: [Param<'_>; 1] = [(&half, Type::INT2)];
    desk.write(&begin, &[(sql::LOCK_LANES, &[]), (sql::CARRY, &params)]).await?;
    let left = 1 - half;
    let (lock, outdated) = (sql::of_half(sql::LOCK_HALF, left), sql::of_half(sql::OUTDATED, left));
    let first: [Statement<'_>; 2] = [(&lock, &[]), (&outdated, &[])];
    clear(desk, &first, &sql::of_half(sql::TRUNCATE_HALF, left)).await.map(drop)
}
