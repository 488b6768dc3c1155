//! What an operator does with a dead letter.

use semel_core::error::{Error, Kind};
use semel_core::message::{Message, MessageId};
use semel_core::outbox::{Judged, Verdict, check};
use tokio_postgres::types::Type;

use super::super::chores::transaction;
use super::super::connect::{Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::super::pool::Link;
use super::row::{Columns, Uuid};
use super::{Desk, sql};

/// A dead letter.
struct Dead {
    sequence: i64,
    lane: i16,
    key: Option<String>,
}

/// # Cancellation
/// It may be done or not; the letter says which.
pub(super) async fn judge(desk: &Desk, id: MessageId, verdict: &Verdict) -> Result<Judged, Error> {
    if let Verdict::Edit(message) = verdict {
        check(std::slice::from_ref(message))?;
        if message.id == id {
            return Err(wrong("an edited message must have an id of its own"));
        }
    }
    let mut link = desk.chores.link_to_any().await?;
    transaction(&mut link, async |link| {
        let Some(dead) = lock(desk, link, id).await? else {
            link.live().run(desk.call_timeout, None, &[("COMMIT", &[])], End::Open).await?;
            return Ok(Judged::NotDead);
        };
        match verdict {
            Verdict::Replay => replay(desk, link, &dead).await?,
            Verdict::Edit(message) => edit(desk, link, &dead, message).await?,
            Verdict::Discard => discard(desk, link, &dead).await?,
        }
        Ok(Judged::Made)
    })
    .await
}

fn wrong(sentence: &str) -> Error {
    Error::new(Kind::Misconfigured, sentence)
}

/// Locks the lane, and then the letter. A save that runs meanwhile may put letters behind this one: whoever
/// comes second must see what the first did, or nobody would let them go on.
async fn lock(desk: &Desk, link: &Link<'_>, id: MessageId) -> Result<Option<Dead>, Fault> {
    let id = Uuid(*id.as_bytes());
    let params: [Param<'_>; 1] = [(&id, Type::UUID)];
    let look: [Statement<'_>; 1] = [(sql::DEAD_LANE, &params)];
    let answers = link.live().run(desk.call_timeout, Some(&desk.begin), &look, End::Open).await?;
    let Some(row) = answers.first().and_then(|rows| rows.first()) else { return Ok(None) };
    let lane: i16 = get(row, 0)?;
    let lane_lock = i32::from(lane);
    let (lock, dead): ([Param<'_>; 1], [Param<'_>; 2]) =
        ([(&lane_lock, Type::INT4)], [(&id, Type::UUID), (&lane, Type::INT2)]);
    let look: [Statement<'_>; 2] = [(sql::LOCK_LANE, &lock), (sql::DEAD, &dead)];
    let answers = link.live().run(desk.call_timeout, None, &look, End::Open).await?;
    let Some(row) = answers.get(1).and_then(|rows| rows.first()) else { return Ok(None) };
    Ok(Some(Dead { sequence: get(row, 0)?, lane: get(row, 1)?, key: get(row, 2)? }))
}

async fn replay(desk: &Desk, link: &Link<'_>, dead: &Dead) -> Result<(), Fault> {
    let clock = desk.clock();
    let params: [Param<'_>; 2] = [(&dead.sequence, Type::INT8), (&clock, Type::INT8)];
    link.live().run(desk.call_timeout, None, &[(sql::REPLAY, &params)], End::Commit(&[])).await.map(drop)
}

async fn edit(desk: &Desk, link: &Link<'_>, dead: &Dead, message: &Message) -> Result<(), Fault> {
    if message.key != dead.key {
        return Err(wrong("an edited message keeps the ordering key of the one it stands for").into());
    }
    let (clock, columns) = (desk.clock(), Columns::of(std::slice::from_ref(message)));
    let mut params: Vec<Param<'_>> = vec![(&dead.sequence, Type::INT8), (&clock, Type::INT8)];
    params.extend(columns.params());
    link.live().run(desk.call_timeout, None, &[(sql::EDIT, &params)], End::Commit(&[])).await.map(drop)
}

/// Those behind it go on.
async fn discard(desk: &Desk, link: &Link<'_>, dead: &Dead) -> Result<(), Fault> {
    let (clock, keys): (_, Vec<&str>) = (desk.clock(), dead.key.as_deref().into_iter().collect());
    let discard: [Param<'_>; 1] = [(&dead.sequence, Type::INT8)];
    let promote: [Param<'_>; 3] = [(&dead.lane, Type::INT2), (&clock, Type::INT8), (&keys, Type::TEXT_ARRAY)];
    let statements: [Statement<'_>; 2] = [(sql::DISCARD, &discard), (sql::PROMOTE, &promote)];
    link.live().run(desk.call_timeout, None, &statements, End::Commit(&[])).await.map(drop)
}
