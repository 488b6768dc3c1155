//! What changes an outbox, each inside one transaction that has the write lock.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::clock::Timestamp;
use semel_core::lease::Nonce;
use semel_core::message::MessageId;
use semel_core::mutant;
use semel_core::outbox::{Aside, Judged, Lane, Settled, Tended, Verdict, shortened};
use semel_core::store::Mark;

use super::hand::Done;
use super::position::{Covers, Landed};
use super::read::{self, Item, Source};
use super::row::{self, signed};
use super::sight::Found;
use crate::sqlite::error::Fault;

/// Delayed messages moved in one transaction; writers go in between.
const TEND_MAX: usize = 256;

/// A lane as it is kept.
pub(super) struct Row {
    pub(super) epoch: u64,
    pub(super) holder: Option<Nonce>,
    pub(super) lease_until: Timestamp,
    pub(super) floor: u64,
    pub(super) saves: u64,
}

/// Whether whoever writes still holds the lane.
pub(super) enum Held<T> {
    Yes(T),
    /// Somebody else does. Nothing was changed.
    Fenced,
}

pub(super) fn lane(conn: &Connection, lane: Lane) -> Result<Row, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/lane.sql"))?;
    let row = statement.query_row([lane.0], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
        Ok(Row {
            epoch: number(0)?,
            holder: row.get::<_, Option<[u8; 16]>>(1)?.map(Nonce::from_bytes),
            lease_until: Timestamp::from_micros(row.get(2)?),
            floor: number(3)?,
            saves: number(4)?,
        })
    });
    row.optional()?.ok_or_else(|| Fault::damaged(format!("lane {} of the outbox is missing", lane.0)))
}

/// The lane has a new holder, under a number no holding of any lane had before.
pub(super) fn take(conn: &Connection, lane: Lane, holder: Nonce, until: Timestamp) -> Result<u64, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/next_epoch.sql"))?;
    let epoch: i64 = statement.query_row([], |row| row.get(0))?;
    let values = params![lane.0, epoch, holder.as_bytes().as_slice(), until.as_micros()];
    conn.prepare_cached(include_str!("sql/take.sql"))?.execute(values)?;
    Ok(epoch.unsigned_abs())
}

/// What a cursor wants to write down.
pub(super) struct Save {
    pub(super) lane: Lane,
    pub(super) epoch: u64,
    /// How many the lane has seen, as far as the cursor knows.
    pub(super) saves: u64,
    pub(super) until: Timestamp,
    pub(super) now: Timestamp,
    pub(super) settled: Vec<(Item, Settled)>,
}

/// Settles, and renews the lease. How many saves the lane has seen then.
pub(super) fn save(conn: &Connection, save: &Save) -> Result<Done<Held<u64>>, Fault> {
    let found = lane(conn, save.lane)?;
    if found.epoch != save.epoch && !mutant::on("sqlite-outbox-zombie-believed") {
        return Ok(Done::Leave(Held::Fenced));
    }
    if found.saves < save.saves && !mutant::on("sqlite-outbox-own-saves-uncounted") {
        // What was settled since the copy was made waits again, below what was read.
        return Err(Fault::fewer_saves(save.lane.0, "this relay made", save.saves, found.saves));
    }
    let mut floor = found.floor;
    for (item, settled) in &save.settled {
        match item.source {
            Source::Outbox => {
                floor = floor.max(item.entry.sequence);
                if *settled != Settled::Sent {
                    put_aside(conn, include_str!("sql/set_aside.sql"), item, settled, save.now)?;
                }
            }
            Source::Aside if *settled == Settled::Sent => remove_letter(conn, signed(item.entry.sequence)?)?,
            Source::Aside if *settled == Settled::Behind => {
                let mut statement = conn.prepare_cached(include_str!("sql/wait_behind.sql"))?;
                statement.execute([signed(item.entry.sequence)?])?;
            }
            Source::Aside => put_aside(conn, include_str!("sql/change_letter.sql"), item, settled, save.now)?,
        }
    }
    must_be_settled(save, remove(conn, save.lane, found.floor, floor)?)?;
    keep(conn, save.lane, &found, save.until, floor)?;
    let changed = save.settled.iter().filter(|(item, settled)| {
        // What went straight out of the outbox was behind nobody.
        item.source == Source::Aside || *settled != Settled::Sent
    });
    for key in read::keys(changed.map(|(item, _)| &*item.entry.message)) {
        park(conn, key, save.now)?;
    }
    Ok(Done::Commit(Held::Yes(found.saves + 1)))
}

/// In a database that was set back under the relay, numbers are given again: what is removed must be what was settled.
fn must_be_settled(save: &Save, mut removed: BTreeMap<u64, MessageId>) -> Result<(), Fault> {
    if mutant::on("sqlite-outbox-settles-another-message") {
        return Ok(());
    }
    for (Item { entry, source }, _) in &save.settled {
        if *source == Source::Outbox && removed.remove(&entry.sequence) != Some(entry.message.id) {
            return Err(Fault::other_message(entry.sequence, "which this relay has read"));
        }
    }
    match removed.first_key_value() {
        None => Ok(()),
        Some((sequence, _)) => Err(Fault::unread_message(*sequence)),
    }
}

fn put_aside(
    conn: &Connection,
    sql: &str,
    item: &Item,
    settled: &Settled,
    now: Timestamp,
) -> Result<(), Fault> {
    let (aside, tried, reason, again_at) = match settled {
        Settled::Later { reason, again_in } => {
            (Aside::Later, 1, shortened(reason), Some(now.after(*again_in)))
        }
        Settled::Dead { reason } => (Aside::Dead, 1, shortened(reason), None),
        Settled::Behind | Settled::Sent => (Aside::Behind, 0, "", None),
    };
    let changed = conn.prepare_cached(sql)?.execute(params![
        signed(item.entry.sequence)?,
        aside as u8,
        item.entry.tries.saturating_add(tried),
        reason,
        now.as_micros(),
        again_at.map(Timestamp::as_micros),
    ])?;
    match changed {
        1 => Ok(()),
        other => {
            let sequence = item.entry.sequence;
            Err(Fault::damaged(format!("setting message {sequence} aside changed {other} rows")))
        }
    }
}

fn remove_letter(conn: &Connection, sequence: i64) -> Result<(), Fault> {
    conn.prepare_cached(include_str!("sql/remove_letter.sql"))?.execute([sequence])?;
    Ok(())
}

fn remove(conn: &Connection, lane: Lane, above: u64, up_to: u64) -> Result<BTreeMap<u64, MessageId>, Fault> {
    if up_to <= above {
        return Ok(BTreeMap::new());
    }
    let mut statement = conn.prepare_cached(include_str!("sql/remove.sql"))?;
    let removed = statement.query_map(params![signed(above)?, signed(up_to)?, lane.0], |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), MessageId::from_bytes(row.get(1)?)))
    })?;
    Ok(removed.collect::<Result<_, _>>()?)
}

fn keep(conn: &Connection, lane: Lane, found: &Row, until: Timestamp, floor: u64) -> Result<(), Fault> {
    // Never backwards: a clock that jumped back must not shorten a lease.
    let until = until.max(found.lease_until);
    let values = params![lane.0, until.as_micros(), signed(floor)?, signed(found.saves + 1)?];
    conn.prepare_cached(include_str!("sql/keep.sql"))?.execute(values)?;
    Ok(())
}

/// Writes down when the first of a key may go, or that nothing of it is set aside.
fn park(conn: &Connection, key: &str, now: Timestamp) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/head.sql"))?;
    let head = statement.query_row([key], |row| {
        Ok((row.get::<_, u16>(0)?, row.get::<_, u8>(1)?, row.get::<_, Option<i64>>(2)?))
    });
    let Some((lane, aside, again_at)) = head.optional()? else {
        conn.prepare_cached(include_str!("sql/unpark.sql"))?.execute([key])?;
        return Ok(());
    };
    let ready_at = match Aside::from_byte(aside) {
        Some(Aside::Later) => Some(again_at.unwrap_or(now.as_micros())),
        // Whatever it waited for is gone.
        Some(Aside::Behind) => Some(now.as_micros()),
        Some(Aside::Dead) if mutant::on("sqlite-outbox-dead-goes-on") => Some(now.as_micros()),
        _ => None,
    };
    conn.prepare_cached(include_str!("sql/park.sql"))?.execute(params![key, lane, ready_at])?;
    Ok(())
}

/// Settles what a sink says has landed, unless the sink says it of a state that was lost. The floor of the lane then.
pub(super) fn adopt(
    conn: &Connection,
    to: Lane,
    epoch: u64,
    landed: &Landed,
    until: Timestamp,
    now: Timestamp,
) -> Result<Done<Held<(u64, u64)>>, Fault> {
    let found = lane(conn, to)?;
    if found.epoch != epoch {
        return Ok(Done::Leave(Held::Fenced));
    }
    if is_from_before_a_rebase(conn, landed)? {
        // What it covers may be other messages by now, and what was set aside then may wait again.
        keep(conn, to, &found, until, found.floor)?;
        return Ok(Done::Commit(Held::Yes((found.floor, found.saves + 1))));
    }
    if landed.saves > found.saves && !mutant::on("sqlite-outbox-saves-uncounted") {
        // What was set aside since the copy was made waits again, and the sink's last message may lie behind it.
        return Err(Fault::fewer_saves(to.0, "a sink knows of", landed.saves, found.saves));
    }
    let mut floor = found.floor;
    if let Some((sequence, id)) = landed.last.filter(|(sequence, _)| *sequence > found.floor) {
        if at(conn, to, sequence)? != Some(id) {
            return Err(Fault::other_message(sequence, "which a sink says has landed"));
        }
        floor = sequence;
        let removed = remove(conn, to, found.floor, floor)?;
        // Where a part was saved, that was done here.
        if let Some(covers) = landed.covers.filter(|covers| found.floor <= covers.above)
            && covers != Covers::of(covers.above, removed.range(covers.above + 1..))
            && !mutant::on("sqlite-outbox-position-by-its-end")
        {
            return Err(Fault::other_message(
                sequence,
                "up to which a sink says messages have landed, or one before it",
            ));
        }
    }
    let mut keys = BTreeSet::new();
    for (sequence, id, tries) in &landed.letters {
        let mut statement = conn.prepare_cached(include_str!("sql/landed_letter.sql"))?;
        let values = params![signed(*sequence)?, id.as_bytes().as_slice(), tries];
        let key = statement.query_row(values, |row| row.get::<_, Option<String>>(0)).optional()?;
        keys.extend(key.flatten());
    }
    keep(conn, to, &found, until, floor)?;
    for key in keys {
        park(conn, &key, now)?;
    }
    Ok(Done::Commit(Held::Yes((floor, found.saves + 1))))
}

/// Every holding since a rebase has a higher epoch than it, and every one before it a lower one.
fn is_from_before_a_rebase(conn: &Connection, landed: &Landed) -> Result<bool, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/last_rebase.sql"))?;
    let rebased: Option<i64> = statement.query_row([], |row| row.get(0))?;
    let is_older = rebased.is_some_and(|epoch| landed.epoch <= epoch.unsigned_abs());
    Ok(is_older && !mutant::on("sqlite-outbox-lost-position-believed"))
}

fn at(conn: &Connection, lane: Lane, sequence: u64) -> Result<Option<MessageId>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/at.sql"))?;
    let found = statement.query_row(params![signed(sequence)?, lane.0], |row| row.get::<_, [u8; 16]>(0));
    Ok(found.optional()?.map(MessageId::from_bytes))
}

/// Frees a lane, if the holding is still this one.
pub(super) fn give_back(conn: &Connection, lane: Lane, epoch: u64) -> Result<Done<()>, Fault> {
    let values = params![lane.0, signed(epoch)?];
    conn.prepare_cached(include_str!("sql/give_back.sql"))?.execute(values)?;
    Ok(Done::Commit(()))
}

/// Moves delayed messages whose time has come into their lanes.
pub(super) fn tend(conn: &Connection, now: Timestamp) -> Result<Done<Tended>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/due.sql"))?;
    let due = statement.query_map(params![now.as_micros(), TEND_MAX as i64], |row| row.get(0))?;
    let due: Vec<i64> = due.collect::<Result<_, _>>()?;
    for entry in &due {
        conn.prepare_cached(include_str!("sql/release.sql"))?.execute([*entry, now.as_micros()])?;
        conn.prepare_cached(include_str!("sql/remove_delayed.sql"))?.execute([entry])?;
    }
    Ok(Done::Commit(Tended { due: due.len() as u64, removed: 0, more: due.len() == TEND_MAX }))
}

/// What became of a verdict.
pub(super) enum Judgement {
    Judged(Judged),
    /// It cannot be carried out; this is why.
    Refused(&'static str),
}

pub(super) fn judge(
    conn: &Connection,
    id: MessageId,
    verdict: &Verdict,
    now: Timestamp,
) -> Result<Done<Judgement>, Fault> {
    let letter = read::letter(conn, id)?.filter(|letter| letter.aside == Aside::Dead);
    let Some(letter) = letter else { return Ok(Done::Leave(Judgement::Judged(Judged::NotDead))) };
    let sequence = signed(letter.entry.sequence)?;
    let old = &letter.entry.message;
    match verdict {
        Verdict::Replay => replay(conn, sequence, now)?,
        Verdict::Edit(message) if message.id == id => {
            let why =
                "an edited message needs an id of its own: under the old one it would pass for a duplicate";
            return Ok(Done::Leave(Judgement::Refused(why)));
        }
        Verdict::Edit(message) if message.key != old.key => {
            let why = "an edited message keeps its ordering key, because it takes its place among those of that key";
            return Ok(Done::Leave(Judgement::Refused(why)));
        }
        Verdict::Edit(message) => {
            row::edit(conn, sequence, message)?;
            replay(conn, sequence, now)?;
        }
        Verdict::Discard => remove_letter(conn, sequence)?,
    }
    if let Some(key) = &old.key {
        park(conn, key, now)?;
    }
    Ok(Done::Commit(Judgement::Judged(Judged::Made)))
}

fn replay(conn: &Connection, sequence: i64, now: Timestamp) -> Result<(), Fault> {
    conn.prepare_cached(include_str!("sql/replay.sql"))?.execute([sequence, now.as_micros()])?;
    Ok(())
}

/// Goes on from a restored state above everything that was seen of the lost one. What waits is published,
/// for all that is known, for the first time. How far it has come then, and how much waits.
pub(super) fn rebase(
    conn: &Connection,
    found: Mark,
    seen: Mark,
    by: &str,
    now: Timestamp,
) -> Result<Done<(Found, u64)>, Fault> {
    let fresh = found.acknowledged(seen);
    let (epoch, sequence) = (signed(fresh.epoch)?, signed(fresh.token.0)?);
    conn.prepare_cached(include_str!("sql/raise_epoch.sql"))?.execute([epoch])?;
    conn.prepare_cached(include_str!("sql/free_lanes.sql"))?.execute([epoch])?;
    let raised = conn.prepare_cached(include_str!("sql/raise_sequence.sql"))?.execute([sequence])?;
    if raised == 0 {
        conn.prepare_cached(include_str!("sql/first_sequence.sql"))?.execute([sequence])?;
    }
    let values = params![epoch, now.as_micros(), by];
    conn.prepare_cached(include_str!("sql/rebased.sql"))?.execute(values)?;
    let count: i64 = conn.prepare_cached(include_str!("sql/count.sql"))?.query_row([], |row| row.get(0))?;
    Ok(Done::Commit((Found { mark: fresh, rebased: fresh.epoch }, count.unsigned_abs())))
}

/// Spreads messages over so many lanes from now on. `false`: some wait, and would be in the wrong one.
pub(super) fn set_lanes(conn: &Connection, lanes: u16) -> Result<Done<bool>, Fault> {
    let empty: bool =
        conn.prepare_cached(include_str!("sql/is_empty.sql"))?.query_row([], |row| row.get(0))?;
    if !empty {
        return Ok(Done::Leave(false));
    }
    conn.prepare_cached(include_str!("sql/set_lanes.sql"))?.execute([lanes])?;
    for lane in 0..lanes {
        conn.prepare_cached(include_str!("sql/add_lane.sql"))?.execute([lane])?;
    }
    Ok(Done::Commit(true))
}
