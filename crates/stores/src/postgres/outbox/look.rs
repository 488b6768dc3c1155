//! What operators see.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::error::Error;
use semel_core::message::{MessageId, Topic};
use semel_core::outbox::{Aside, Backlog, Entry, Found, Lane, Letter, Overview};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::no_row;
use super::super::connect::{Param, get};
use super::super::pipeline::Statement;
use super::row::{self, Uuid, damaged, entry, lane};
use super::take::Newest;
use super::{Desk, sql};

/// Most rows an overview counts.
const COUNT_MAX: i64 = 100_000;
/// How long a search through all messages may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn overview(desk: &Desk) -> Result<Overview, Error> {
    let here = {
        let mut link = desk.chores.link_to_any().await?;
        link.busy();
        let here = link.live().here(desk.call_timeout).await?;
        link.done();
        here
    };
    let (lanes, clock): (Vec<i16>, _) = ((0..desk.lanes as i16).collect(), desk.clock());
    let look: [Param<'_>; 2] = [(&lanes, Type::INT2_ARRAY), (&clock, Type::INT8)];
    let limit: [Param<'_>; 1] = [(&COUNT_MAX, Type::INT8)];
    let backlog_of: [Param<'_>; 2] = [(&COUNT_MAX, Type::INT8), (&clock, Type::INT8)];
    let statements: [Statement<'_>; 4] = [
        (sql::NEWEST, &look),
        (sql::BACKLOG, &backlog_of),
        (sql::BACKLOG_ASIDE, &limit),
        (sql::COUNT_DELAYED, &limit),
    ];
    let answers = desk.read(&desk.chores, SEARCH_TIMEOUT, &statements).await?;
    let [newest, waiting, letters, delayed, ..] = &answers[..] else { return Err(no_row()) };
    let mut overview = Overview::default();
    for row in newest {
        let newest = Newest::read(row)?;
        overview.stopped = overview.stopped.or(newest.stopped(here.as_deref()));
        overview.lanes.push(newest.status);
    }
    let mut backlog: BTreeMap<(Topic, Lane), Backlog> = BTreeMap::new();
    let looked_at = |row: &Row, at| get::<i64>(row, at).map(|looked_at| looked_at >= COUNT_MAX);
    for row in waiting {
        let entry = of_topic(&mut backlog, row)?;
        entry.waiting = row::number(row, 2)?;
        entry.oldest = Some(Duration::from_micros(get::<i64>(row, 3)?.max(0) as u64));
        overview.more |= looked_at(row, 4)?;
    }
    for row in letters {
        let entry = of_topic(&mut backlog, row)?;
        (entry.aside, entry.dead) = (row::number(row, 2)?, row::number(row, 3)?);
        overview.more |= looked_at(row, 4)?;
    }
    overview.delayed = row::number(delayed.first().ok_or_else(no_row)?, 0)?;
    overview.more |= overview.delayed >= COUNT_MAX as u64;
    overview.backlog = backlog.into_values().collect();
    Ok(overview)
}

fn of_topic<'a>(
    backlog: &'a mut BTreeMap<(Topic, Lane), Backlog>,
    row: &Row,
) -> Result<&'a mut Backlog, Error> {
    let lane = lane(row, 0)?;
    let topic = Topic::parse(get(row, 1)?).map_err(|error| damaged("topic").because(error))?;
    Ok(backlog.entry((topic.clone(), lane)).or_insert(Backlog {
        topic,
        lane,
        waiting: 0,
        oldest: None,
        aside: 0,
        dead: 0,
    }))
}

pub(super) async fn list(
    desk: &Desk,
    topic: Option<&Topic>,
    after: u64,
    limit: u32,
) -> Result<Vec<(Lane, Entry)>, Error> {
    let (topic, after) = (topic.map(Topic::as_str), i64::try_from(after).unwrap_or(i64::MAX));
    let limit = i64::from(limit);
    let params: [Param<'_>; 3] = [(&topic, Type::TEXT), (&after, Type::INT8), (&limit, Type::INT8)];
    let answers = desk.read(&desk.chores, SEARCH_TIMEOUT, &[(sql::LIST, &params)]).await?;
    let rows = answers.first().ok_or_else(no_row)?;
    rows.iter().map(|row| Ok((lane(row, 0)?, entry(row, 1)?))).collect()
}

pub(super) async fn aside(
    desk: &Desk,
    only: Option<Aside>,
    after: u64,
    limit: u32,
) -> Result<Vec<Letter>, Error> {
    let only = only.map(|aside| i16::from(aside as u8));
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::from(limit));
    let params: [Param<'_>; 3] = [(&only, Type::INT2), (&after, Type::INT8), (&limit, Type::INT8)];
    let answers = desk.read(&desk.chores, desk.call_timeout, &[(sql::ASIDE, &params)]).await?;
    answers.first().ok_or_else(no_row)?.iter().map(letter).collect()
}

pub(super) async fn find(desk: &Desk, id: MessageId) -> Result<Option<Found>, Error> {
    let id = Uuid(*id.as_bytes());
    let params: [Param<'_>; 1] = [(&id, Type::UUID)];
    // What is set aside is in the ring too, until that is emptied: look there last.
    let statements: [Statement<'_>; 3] =
        [(sql::FIND_ASIDE, &params), (sql::FIND_DELAYED, &params), (sql::FIND, &params)];
    let answers = desk.read(&desk.chores, SEARCH_TIMEOUT, &statements).await?;
    let [aside, delayed, waiting, ..] = &answers[..] else { return Err(no_row()) };
    Ok(match (aside.first(), delayed.first(), waiting.first()) {
        (Some(row), ..) => Some(Found::Aside(letter(row)?)),
        (_, Some(row), _) => Some(Found::Delayed(row::message(row, 0)?)),
        (.., Some(row)) => Some(Found::Waiting(lane(row, 0)?, entry(row, 1)?)),
        _ => None,
    })
}

fn letter(row: &Row) -> Result<Letter, Error> {
    let aside = u8::try_from(get::<i16>(row, 1)?).ok().and_then(Aside::from_byte);
    let aside = aside.ok_or_else(|| damaged("state"))?;
    let tries = get::<i32>(row, 5)?.max(0) as u32;
    Ok(Letter {
        lane: lane(row, 0)?,
        entry: Entry { tries, behind: aside == Aside::Behind, ..entry(row, 6)? },
        aside,
        reason: get(row, 2)?,
        since: Timestamp::from_micros(get(row, 3)?),
        again_at: get::<Option<i64>>(row, 4)?.map(Timestamp::from_micros),
    })
}
