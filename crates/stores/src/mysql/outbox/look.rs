//! What operators see, and who writes.

use std::collections::BTreeMap;

use mysql_async::Row;
use semel_core::Nonce;
use semel_core::clock::Timestamp;
use semel_core::error::Error;
use semel_core::message::{MessageId, Topic};
use semel_core::outbox::{Aside, Backlog, Entry, Found, Lane, LaneStatus, Letter, Overview};

use super::super::chores::no_row;
use super::super::connect::Live;
use super::super::fault::Fault;
use super::super::pool::retried;
use super::super::row::{maybe_bytes, maybe_int, text, time};
use super::row::{self, damaged, lane, number, signed};
use super::take::Whole;
use super::{Desk, sql};

/// Rows looked at when counting.
const COUNT_MAX: u64 = 100_000;
/// Rows of a list, whatever the caller allows.
const LIST_MAX: u32 = 1000;

/// The oldest and the newest transaction that has written something and not ended.
pub(super) async fn writers(live: &mut Live) -> Result<Option<(u64, u64)>, Fault> {
    let rows = live.say(sql::WRITERS).await?;
    let row = rows.first().ok_or_else(no_row)?;
    match maybe_int(row, 0)? {
        None => Ok(None),
        Some(_) => Ok(Some((number(row, 0)?, number(row, 1)?))),
    }
}

pub(super) async fn overview(desk: &Desk) -> Result<Overview, Error> {
    retried!(desk.chores.tries_on_any(), live => count(desk, live))
}

async fn count(desk: &Desk, live: &mut Live) -> Result<Overview, Fault> {
    let stopped = Whole::read(desk, live, sql::MARK).await?.stopped();
    let now = desk.now(live).await?;
    let mut lanes = Vec::new();
    for row in &live.say(sql::LANES).await? {
        lanes.push(status(row, now)?);
    }
    let mut backlog: BTreeMap<(Topic, Lane), Backlog> = BTreeMap::new();
    let (mut waiting, mut aside) = (0, 0);
    for row in &live.ask(sql::BACKLOG, vec![COUNT_MAX.into()]).await?.rows {
        let line = of_topic(&mut backlog, row)?;
        line.waiting = number(row, 2)?;
        line.oldest = Some(now.since(time(row, 3)?));
        waiting += line.waiting;
    }
    for row in &live.ask(sql::BACKLOG_ASIDE, vec![COUNT_MAX.into()]).await?.rows {
        let line = of_topic(&mut backlog, row)?;
        (line.aside, line.dead) = (number(row, 2)?, number(row, 3)?);
        aside += line.aside + line.dead;
    }
    let delayed = live.ask(sql::COUNT_DELAYED, vec![COUNT_MAX.into()]).await?.rows;
    let delayed = number(delayed.first().ok_or_else(no_row)?, 0)?;
    let more = [waiting, aside, delayed].contains(&COUNT_MAX);
    Ok(Overview { lanes, backlog: backlog.into_values().collect(), delayed, more, stopped })
}

fn status(row: &Row, now: Timestamp) -> Result<LaneStatus, Error> {
    let until = time(row, 3)?;
    let holder = maybe_bytes(row, 2)?.and_then(|bytes| bytes.try_into().ok()).map(Nonce::from_bytes);
    let holder = holder.filter(|_| until > now);
    Ok(LaneStatus { lane: lane(row, 0)?, epoch: number(row, 1)?, holder, lease_until: holder.map(|_| until) })
}

fn of_topic<'a>(
    backlog: &'a mut BTreeMap<(Topic, Lane), Backlog>,
    row: &Row,
) -> Result<&'a mut Backlog, Error> {
    let topic = text(row, 0)?.unwrap_or_default();
    let topic = Topic::parse(topic).map_err(|error| damaged(0, "a topic").because(error))?;
    let lane = lane(row, 1)?;
    let empty = Backlog { topic: topic.clone(), lane, waiting: 0, oldest: None, aside: 0, dead: 0 };
    Ok(backlog.entry((topic, lane)).or_insert(empty))
}

pub(super) async fn list(
    desk: &Desk,
    topic: Option<&Topic>,
    after: u64,
    limit: u32,
) -> Result<Vec<(Lane, Entry)>, Error> {
    let topic = topic.map(Topic::as_str);
    let values = vec![signed(after).into(), topic.into(), topic.into(), limit.min(LIST_MAX).into()];
    let rows = retried!(desk.chores.tries_on_any(), live => live.ask(sql::LIST, values.clone()))?.rows;
    rows.into_iter().map(row::waiting).collect()
}

pub(super) async fn aside(
    desk: &Desk,
    only: Option<Aside>,
    after: u64,
    limit: u32,
) -> Result<Vec<Letter>, Error> {
    let only = only.map(|aside| aside as u8);
    let values = vec![signed(after).into(), only.into(), only.into(), limit.min(LIST_MAX).into()];
    let rows = retried!(desk.chores.tries_on_any(), live => live.ask(sql::LETTERS, values.clone()))?.rows;
    rows.into_iter().map(row::letter).collect()
}

pub(super) async fn find(desk: &Desk, id: MessageId) -> Result<Option<Found>, Error> {
    retried!(desk.chores.tries_on_any(), live => search(live, id))
}

/// In the direction messages move, so that one that moves meanwhile is met.
async fn search(live: &mut Live, id: MessageId) -> Result<Option<Found>, Fault> {
    let values = || vec![id.as_bytes()[..].into()];
    if let Some(row) = live.ask(sql::FIND_DELAYED, values()).await?.rows.pop() {
        return Ok(Some(Found::Delayed(row::delayed(row)?)));
    }
    if let Some(row) = live.ask(sql::FIND, values()).await?.rows.pop() {
        let (lane, entry) = row::waiting(row)?;
        return Ok(Some(Found::Waiting(lane, entry)));
    }
    match live.ask(sql::FIND_LETTER, values()).await?.rows.pop() {
        Some(row) => Ok(Some(Found::Aside(row::letter(row)?))),
        None => Ok(None),
    }
}
